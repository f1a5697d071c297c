"""One process at a time drives a run."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cli.lock import held
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

HOLD = """
import sys, time
from pathlib import Path
from agentrl.cli.lock import held
with held(Path(sys.argv[1]), "run"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_holder_is_refused_and_names_the_first(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(ConfigError, match=rf"--run_name: .* is in use: process {holder.pid} is its run"),
            held(tmp_path, "run"),
        ):
            pass
        with held(tmp_path, "trainer"):
            pass
    finally:
        holder.kill()
        holder.wait()
    with held(tmp_path, "run"):
        pass


def test_a_folder_that_cannot_be_made_is_named_by_its_option(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigError, match=r"--output_dir: .*file/run cannot be written"),
        held(tmp_path / "file" / "run", "run"),
    ):
        pass


@pytest.mark.parametrize("name", ["../up", "a/b", "/abs", ".hidden", "..", "a\\b", "a\nb"])
def test_a_run_name_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--run_name: .* cannot name a folder"):
        RunConfig.parse([f"--run_name={name}"], command="run")


@pytest.mark.parametrize("name", ["", "a b", "ü", "v1.2", "a-b_c"])
def test_other_names_are_taken(name: str) -> None:
    assert RunConfig.parse([f"--run_name={name}"], command="run").run.run_name == name
