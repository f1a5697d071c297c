"""Every shared case of math_equal, judge_replies and passk is one test, called the way outside users call it."""

import importlib.util
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
    return [pytest.param(run, id=name) for name, run in checker.KINDS[kind](FOLDER, set())]


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
