"""Every shared case of math_equal, judge_replies and passk is one test, called the way outside users call it.

``extra_KIND.jsonl`` holds further cases of the same form (those of passk: one estimator or data set a line).
"""

import importlib.util
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent


def cases(kind: str) -> list[object]:
    spec = importlib.util.spec_from_file_location("check_cases", FOLDER / "check_cases.py")
    assert spec is not None
    assert spec.loader is not None
    checker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(checker)
    with tempfile.TemporaryDirectory() as extra:
        write_extra(kind, Path(extra))
        found = [item for folder in (FOLDER, Path(extra)) for item in checker.KINDS[kind](folder, set())]
    return [pytest.param(run, id=name) for name, run in found]


def write_extra(kind: str, folder: Path) -> None:
    """The extra cases under the names and in the form the checker reads."""
    source = FOLDER / f"extra_{kind}.jsonl"
    if kind != "passk":
        shutil.copy(source, folder / f"{kind}.jsonl")
        return
    rows = [json.loads(line) for line in source.read_text().splitlines()]
    parts = {"estimator": [r for r in rows if "n" in r], "datasets": [r for r in rows if "rollouts" in r]}
    (folder / "passk.json").write_text(json.dumps({"tolerance": 1e-12, **parts}))


@pytest.mark.parametrize("run", cases("math_equal"))
def test_mathematical_equality(run: Callable[[], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run()


@pytest.mark.parametrize("run", cases("judge_replies"))
def test_verdict_of_a_judge(run: Callable[[], bool]) -> None:
    assert run()


@pytest.mark.parametrize("run", cases("passk"))
def test_pass_at_k(run: Callable[[], bool]) -> None:
    assert run()
