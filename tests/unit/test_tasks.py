"""Task files, answers and first messages."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.tasks import TaskFileError, extract_answer, load_tasks, task_messages
from agentrl.types import Task


def write(folder: Path, *rows: object, name: str = "tasks.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def problems(path: Path, **options) -> list[tuple[int | None, str | None, str]]:
    with pytest.raises(TaskFileError) as error:
        load_tasks(path, **options)
    return [(problem.line, problem.field, problem.kind) for problem in error.value.problems]


def test_a_row_becomes_a_task_and_keeps_what_has_no_meaning_here(tmp_path: Path) -> None:
    row = {
        "id": 7,
        "query": "q",
        "answer": False,
        "scorer": "exact",
        "answer_schema": "boxed",
        "tools": ["a"],
        "setup": [{"tool": "t", "arguments": {}}],
        "system_prompt": None,
        "metadata": {"x": 1},
        "level": 3,
        "file_name": "f.pdf",
    }
    (task,) = load_tasks(write(tmp_path, row))
    assert (task.task_id, task.query, task.scorer, task.answer_schema) == ("7", "q", "exact", "boxed")
    assert task.answer is False
    assert (task.tools, task.setup, task.system_prompt) == (("a",), ({"tool": "t", "arguments": {}},), None)
    assert task.metadata == {"x": 1, "level": 3, "file_name": "f.pdf"}


def test_names_used_elsewhere_are_read_too(tmp_path: Path) -> None:
    (task,) = load_tasks(write(tmp_path, {"task_id": "g", "Question": "q", "Final answer": "a", "Level": 1}))
    assert (task.task_id, task.query, task.answer, task.metadata) == ("g", "q", "a", {"Level": 1})


def test_the_text_of_the_error_names_file_line_and_field(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "query": "q"})
    with pytest.raises(ConfigError) as error:
        load_tasks(path)
    assert str(error.value).startswith(f"{path}, line 1, field answer: missing: ")
    assert '"scorer": "none"' in str(error.value)
    assert '"scorer": "none"' in str(error.value)


def test_an_answer_is_optional_where_no_scorer_needs_it(tmp_path: Path) -> None:
    path = write(tmp_path, {"id": "a", "query": "q", "scorer": "none"}, {"id": "b", "query": "q", "scorer": "format"})
    names = {"none", "format"}
    assert problems(path, known_scorers=names) == [(2, "answer", "missing")]
    assert len(load_tasks(path, known_scorers=names, needs_truth=lambda scorer: scorer not in names)) == 2


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": True}, ("id", "wrong_type")),
        ({"id": " "}, ("id", "empty")),
        ({"query": 3}, ("query", "wrong_type")),
        ({"answer": {"a": 1}}, ("answer", "wrong_type")),
        ({"answer": []}, ("answer", "wrong_type")),
        ({"answer": [" "]}, ("answer", "empty")),
        ({"scorer": 3}, ("scorer", "wrong_type")),
        ({"scorer": ["exact", "nope"]}, ("scorer", "unknown")),
        ({"answer_schema": "a b"}, ("answer_schema", "invalid")),
        ({"system_prompt": 3}, ("system_prompt", "wrong_type")),
        ({"tools": "search"}, ("tools", "wrong_type")),
        ({"setup": ["x"]}, ("setup", "wrong_type")),
        ({"metadata": []}, ("metadata", "wrong_type")),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, row: dict, problem: tuple[str, str]) -> None:
    path = write(tmp_path, {"id": "a", "query": "q", "answer": "a"}, {"id": "b", "query": "q", "answer": "a", **row})
    assert problems(path) == [(2, *problem)]


def test_scorers_of_the_form_module_and_function_are_taken(tmp_path: Path) -> None:
    row = {"id": "a", "query": "q", "answer": "a", "scorer": "operator:eq"}
    assert load_tasks(write(tmp_path, row))[0].scorer == "operator:eq"


def test_an_array_names_the_line_on_which_a_row_begins(tmp_path: Path) -> None:
    text = '[\n  {"id": "a", "query": "q", "answer": "a"},\n\n  {"id": "b",\n   "answer": "a"},\n 3\n]\n'
    assert problems(write(tmp_path, text)) == [(4, "query", "missing"), (6, None, "not_object")]
    assert problems(write(tmp_path, '[\n{"id": "a", "query": "q", "answer": "a"},\n]'))[0][1:] == (None, "invalid_json")
    assert problems(write(tmp_path, '[\n{"id": "a", "query": "q", "answer": "a"}\n')) == [(3, None, "invalid_json")]
    assert problems(write(tmp_path, "[]")) == [(None, None, "empty_file")]


def test_a_first_row_that_is_a_list_does_not_make_the_file_an_array(tmp_path: Path) -> None:
    path = write(tmp_path, "[1]", {"id": "a", "query": "q", "answer": "a"})
    assert problems(path) == [(1, None, "not_object")]


def test_a_file_that_is_not_there_is_a_task_file_error(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.jsonl") == [(None, None, "missing")]


def test_many_problems_are_all_kept_and_the_text_stays_short(tmp_path: Path) -> None:
    path = write(tmp_path, *["{"] * 100)
    with pytest.raises(TaskFileError) as error:
        load_tasks(path)
    assert len(error.value.problems) == 100
    assert "and 80 more" in str(error.value)


@given(answer=st.text(), before=st.text(alphabet="ab<>/\\{} "))
def test_an_answer_comes_back_as_it_was_written(answer: str, before: str) -> None:
    inside = answer.replace("<", "").strip()
    assert extract_answer(f"{before} <answer> {inside} </answer>") == (inside or None)


@pytest.mark.parametrize(
    "piece", ["<answer>", "</answer>", "\\boxed{", "\\boxed ", "\\fbox{", "{", "\\boxed x$", "<answer>x</answer>"]
)
@pytest.mark.parametrize("schema", ["answer", "boxed"])
def test_answers_are_found_in_linear_time(piece: str, schema: str) -> None:
    begun = time.process_time()
    extract_answer(piece * (300_000 // len(piece)), schema=schema)
    assert time.process_time() - begun < 2


def test_messages_begin_with_system_prompt_and_query() -> None:
    task = Task(task_id="a", query="2+2?", system_prompt="Be brief.", query_prompt="Think first.")
    assert task_messages(task) == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?\n\nThink first."},
    )


@pytest.mark.parametrize(
    ("schema", "asked"), [("answer", "<answer>"), ("final.answer", "</final.answer>"), ("boxed", "\\boxed{}")]
)
def test_without_a_system_prompt_the_format_of_the_schema_is_asked_for(schema: str, asked: str) -> None:
    task = Task(task_id="a", query="2+2?", answer_schema=schema)
    system, question = task_messages(task)
    assert asked in system["content"]
    assert (question,) == task_messages(task, default_prompt=False) == ({"role": "user", "content": "2+2?"},)


def test_messages_of_a_task_are_kept() -> None:
    messages = ({"role": "user", "content": "given"},)
    assert task_messages(Task(task_id="a", query="given", messages=messages)) == messages
