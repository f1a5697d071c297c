"""The README's own blocks, as they stand there: the self-check, the three scripts as shipped, a run of one's own."""

from pathlib import Path

import pytest
from pages import ROOT, play

pytestmark = [pytest.mark.ci, pytest.mark.timeout(1500)]


def test_the_blocks_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    printed = play(ROOT / "README.md", tmp_path, timeout=1200)
    assert printed.startswith("All dependencies working\n")
    results = [line for line in printed.splitlines() if line.startswith("held-out success: ")]
    assert len(results) == 3
    for line in results[:2]:
        before, after = map(float, line.removeprefix("held-out success: ").split(" -> "))
        assert after - before >= 0.5, line
    assert "\nsuccess: " in printed
    for kind, run in (("train", "my_run"), ("train", "my_rl_training_run"), ("eval", "my_run")):
        assert (tmp_path / "logs" / "as" / f"{run}_{kind}_0.log").stat().st_size
    assert (tmp_path / "output" / "my_run-eval-40" / "results.json").is_file()
    assert (tmp_path / "output" / "mine" / "checkpoint-4" / "COMPLETE").is_file()
