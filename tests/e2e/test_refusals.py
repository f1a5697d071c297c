"""What a person gets wrong: a clear error, an exit code, and nothing left running."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest
from runs import SCRIPTED, Run, write_tasks

from agentrl.cli.lock import held

pytestmark = [pytest.mark.ci, pytest.mark.timeout(120)]


@pytest.fixture
def options(tmp_path: Path) -> dict[str, str]:
    return SCRIPTED | write_tasks(tmp_path) | {"max_steps": "2"}


def refused(tmp_path: Path, options: dict[str, str], *flags: str) -> str:
    run = Run(tmp_path, "refused").start(options, *flags)
    code, printed = run.end(timeout=60)
    assert code == 2, printed
    assert not (run.output / "logs").exists(), "something was started"
    return printed


def test_a_missing_task_file_is_named_before_anything_starts(tmp_path: Path, options: dict[str, str]) -> None:
    printed = refused(tmp_path, options | {"train_file": "no/such.jsonl"})
    assert "--train_file: no such file: no/such.jsonl" in printed


def test_a_broken_task_file_is_named_with_line_and_field(tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "broken.jsonl").write_text('{"id": "a", "query": "q", "answer": "1", "scorer": "math"}\n{"id": "b"}\n')
    printed = refused(tmp_path, options | {"train_file": "broken.jsonl"})
    assert "broken.jsonl" in printed
    assert "line 2" in printed
    assert "query" in printed


def test_an_unknown_option_is_named_with_the_nearest(tmp_path: Path, options: dict[str, str]) -> None:
    printed = refused(tmp_path, options, "--num_generation=4")
    assert "--num_generation: unknown option; did you mean --num_generations?" in printed


def test_an_unknown_scorer_is_named_with_the_known_ones(tmp_path: Path, options: dict[str, str]) -> None:
    row = {"id": "a", "query": "q", "answer": "1", "scorer": "mathh"}
    (tmp_path / "scorer.jsonl").write_text(json.dumps(row) + "\n")
    printed = refused(tmp_path, options | {"train_file": "scorer.jsonl"})
    assert "mathh" in printed
    assert "math" in printed.replace("mathh", "")


def test_a_tool_server_that_cannot_start_fails_the_run_and_is_named(tmp_path: Path, options: dict[str, str]) -> None:
    run = Run(tmp_path, "no-tools").start(options | {"mcp_manager_url": "stdio:python -c 'raise SystemExit(3)'"})
    code, printed = run.end(timeout=60)
    assert code == 1
    assert "the sampler process ended" in printed
    assert "exited with code 3" in printed


def test_a_program_of_a_tool_server_that_is_not_there_is_named_before_anything_starts(
    tmp_path: Path, options: dict[str, str]
) -> None:
    printed = refused(tmp_path, options | {"mcp_manager_url": "stdio:no-such-server --flag"})
    assert "--mcp_manager_url: tool server 'no-such-server': there is no program 'no-such-server'" in printed


def test_a_run_that_is_in_use_is_not_driven_by_a_second_process(tmp_path: Path, options: dict[str, str]) -> None:
    with held(tmp_path / "output" / "refused", "run"):
        printed = refused(tmp_path, options, "--resume_from_checkpoint=auto")
    assert f"is in use: process {os.getpid()} is its run" in printed


def test_tasks_without_a_signal_end_the_run_with_a_warning(tmp_path: Path, options: dict[str, str]) -> None:
    row = {"id": "a", "query": "What is 1 + 1?", "answer": "three", "scorer": "exact"}
    (tmp_path / "hopeless.jsonl").write_text(json.dumps(row) + "\n")
    run = Run(tmp_path, "hopeless").start(options | {"train_file": "hopeless.jsonl", "eval_file": ""})
    code, printed = run.end(timeout=60)
    assert code == 0, printed + run.logs()
    assert "warning: nothing was trained: in 1 of 1 groups all episodes scored the same" in printed


def test_a_task_that_names_an_unknown_tool_fails_the_run_and_names_it(tmp_path: Path, options: dict[str, str]) -> None:
    row = {"id": "a", "query": "What is 1 + 1?", "answer": "2", "scorer": "math", "tools": ["abacus"]}
    (tmp_path / "abacus.jsonl").write_text(json.dumps(row) + "\n")
    run = Run(tmp_path, "no-tool").start(options | {"train_file": "abacus.jsonl", "eval_file": ""})
    code, printed = run.end(timeout=60)
    assert code == 1
    assert "abacus" in printed
    assert "calculator" in printed


def test_an_engine_that_is_not_there_fails_the_run_and_is_named(tmp_path: Path, options: dict[str, str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    run = Run(tmp_path, "no-engine").start(options | {"engine_url": url, "publish_timeout": "5"})
    code, printed = run.end(timeout=60)
    assert code == 1
    assert url in printed


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "output" / "refused").mkdir(parents=True)
    (tmp_path / "output" / "refused" / "run.db").touch()
    printed = refused(tmp_path, options)
    assert "--resume_from_checkpoint auto" in printed
