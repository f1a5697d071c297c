"""A run that replaces groups without signal and chooses its tasks: every planned step is full, also after a kill."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from runs import SCRIPTED, Run, write_tasks

from agentrl.types import Split, Task, TaskStatus

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

NUM_TASKS, GROUPS = 12, 2
CHOSEN = {"dynamic_sampling": "true", "task_sampling": "difficulty", "num_train_epochs": "2"}


def scripted(folder: Path) -> dict[str, str]:
    """Half of the siblings are right, so of two siblings half of the groups are all equal."""
    given = SCRIPTED | write_tasks(folder, num_train=NUM_TASKS) | {"eval_strategy": "no", "num_generations": "2"}
    return given | {"groups_per_step": str(GROUPS)}


def played(run: Run) -> list[Task]:
    return run.ask(lambda store: store.find("task", split=Split.TRAIN))


def trained_rows(run: Run) -> list[tuple[str, int]]:
    return sorted((row.task, row.slot) for row in run.ask(lambda store: store.find("row", status="trained")))


def groups_of_steps(run: Run) -> list[float]:
    """Of each step its last event: one that was made again counts once."""
    return list({event["step"]: event["groups"] for event in run.steps()}.values())


def silent(tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.status is TaskStatus.ABANDONED]


def test_every_planned_step_is_full_and_a_killed_run_goes_on_with_the_same_choices(tmp_path: Path) -> None:
    options = scripted(tmp_path) | CHOSEN
    whole = Run(tmp_path, "whole").start(options)
    code, printed = whole.end()
    assert code == 0, printed + whole.logs()
    assert groups_of_steps(whole) == [GROUPS] * (2 * NUM_TASKS // GROUPS)
    replaced = silent(played(whole))
    assert replaced
    assert len(played(whole)) == 2 * NUM_TASKS + len(replaced)
    assert sum(event["groups_without_signal"] for event in whole.steps()) == len(replaced)
    assert "fewer than planned" not in printed

    killed = Run(tmp_path, "killed").start(options)
    killed.wait_for_step(3)
    os.kill(killed.pid_of("trainer"), signal.SIGKILL)
    assert killed.end()[0] == 1
    code, printed = killed.start(options, "--resume_from_checkpoint=auto").end()
    assert code == 0, printed + killed.logs()
    assert [task.id.partition("/")[2] for task in played(killed)] == [
        task.id.partition("/")[2] for task in played(whole)
    ]
    assert [(task.partition("/")[2], slot) for task, slot in trained_rows(killed)] == [
        (task.partition("/")[2], slot) for task, slot in trained_rows(whole)
    ]


def test_without_it_the_steps_of_groups_without_signal_are_lost_and_that_is_said(tmp_path: Path) -> None:
    run = Run(tmp_path, "plain").start(scripted(tmp_path))
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    assert sum(groups_of_steps(run)) == NUM_TASKS - len(silent(played(run))) < NUM_TASKS
    assert "fewer than planned" in printed
    assert "--dynamic_sampling true give more" in printed


def test_a_smaller_step_is_told_by_the_trainer_and_in_the_metrics(tmp_path: Path) -> None:
    limits = {"dynamic_sampling": "true", "dynamic_sampling_limit": "1", "groups_per_step": "6"}
    run = Run(tmp_path, "short").start(scripted(tmp_path) | limits)
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    short = [event for event in run.steps() if event["groups_short"]]
    assert short
    assert all(event["groups"] + event["groups_short"] == 6 for event in short)
    told = (run.output / "logs" / "trainer.log").read_text()
    step, groups, missing = (int(short[0][name]) for name in ("step", "groups", "groups_short"))
    assert f"step {step} is trained with {groups} groups, {missing} fewer" in told
    assert "--dynamic_sampling_limit" in told
    in_all = sum(int(event["groups_short"]) for event in short)
    assert f"steps were trained with {in_all} groups fewer than asked for, and steps of 0 groups left out" in printed
