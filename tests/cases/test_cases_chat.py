"""The case files of chat and tasks, one test per case."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

CASES = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("check_cases", CASES / "check_cases.py")
assert SPEC is not None
assert SPEC.loader is not None
checker = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(checker)

NUM_CASES = {"tool_calls": 75, "answers": 45, "task_files": 25}
FOUND = [(kind, *case) for kind in NUM_CASES for case in checker.KINDS[kind](CASES, set())]


@pytest.mark.parametrize(("kind", "name", "run"), FOUND, ids=[f"{kind}-{name}" for kind, name, _ in FOUND])
def test_the_case_holds(kind: str, name: str, run: Callable[[], bool]) -> None:
    assert run()


@pytest.mark.parametrize("kind", NUM_CASES)
def test_no_case_is_lost(kind: str) -> None:
    assert len({name for found, name, _ in FOUND if found == kind}) == NUM_CASES[kind]
