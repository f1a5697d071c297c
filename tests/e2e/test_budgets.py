"""Budgets in whole runs: the page about them is played, and what was spent before a crash counts after it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from pages import ROOT, play
from runs import SCRIPTED, Run, write_tasks

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]


def test_the_page_about_budgets_keeps_its_word(tmp_path: Path) -> None:
    printed = " ".join(play(ROOT / "docs" / "budgets.md", tmp_path, timeout=200).split())
    assert "tokens): no further training group is begun; those under way are finished and trained" in printed
    assert "capped: finished" in printed
    assert "EUR): the run ends when the groups under way are finished" in printed
    assert "of 0.8 EUR), so " in printed


def test_what_was_spent_before_a_crash_counts_after_it(tmp_path: Path) -> None:
    options = SCRIPTED | write_tasks(tmp_path) | {"num_train_epochs": "50", "budget": "calls=200"}
    run = Run(tmp_path, "capped").start(options)
    run.wait_for_step(1)
    os.kill(run.pid_of("sampler"), signal.SIGKILL)
    assert run.end()[0] == 1
    before = run.ask(lambda store: store.spending())["calls"]
    assert 0 < before < 200
    code, printed = run.start(options, "--resume_from_checkpoint=auto").end()
    assert code == 0, printed + run.logs()
    assert "of 200 model calls): no further training group is begun" in " ".join(printed.split())
    turns = run.ask(lambda store: store.count("turn"))
    assert 200 <= run.ask(lambda store: store.spending())["calls"] == turns < 300
    last = run.steps()[-1]
    assert last["budget/calls"] == pytest.approx(last["spent/calls"] / 200)
    evaluations = [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]
    assert max(event["step"] for event in evaluations if event["kind"] == "evaluation") == last["step"] > 1
