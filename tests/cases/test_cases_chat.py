"""The case files of chat and tasks, one test per case.

``extra_tool_calls.jsonl``, ``extra_answers.jsonl`` and ``extra_task_files`` hold further cases of the same form.
"""

import importlib.util
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CASES = Path(__file__).parent
SPEC = importlib.util.spec_from_file_location("check_cases", CASES / "check_cases.py")
assert SPEC is not None
assert SPEC.loader is not None
checker = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(checker)

FILES = {"tool_calls": "tool_calls.jsonl", "answers": "answers.jsonl", "task_files": "task_files"}
NUM_CASES = {"tool_calls": 75 + 55, "answers": 45 + 25, "task_files": 25 + 23}
EXTRA = tempfile.TemporaryDirectory()
"""The extra cases under the names that the checker reads; task files are opened only when a test runs."""


def folder_of_extra_cases() -> Path:
    folder = Path(EXTRA.name)
    for name in FILES.values():
        source = CASES / f"extra_{name}"
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / name)
    return folder


def found_cases() -> Iterator[tuple[str, str, Callable[[], bool]]]:
    for folder in (CASES, folder_of_extra_cases()):
        for kind in FILES:
            for name, run in checker.KINDS[kind](folder, set()):
                yield kind, name, run


FOUND = list(found_cases())


@pytest.mark.parametrize(("kind", "name", "run"), FOUND, ids=[f"{kind}-{name}" for kind, name, _ in FOUND])
def test_the_case_holds(kind: str, name: str, run: Callable[[], bool]) -> None:
    assert run()


@pytest.mark.parametrize("kind", NUM_CASES)
def test_no_case_is_lost(kind: str) -> None:
    assert len({name for found, name, _ in FOUND if found == kind}) == NUM_CASES[kind]
