"""``agentrl sample`` beside a trainer and an engine started elsewhere: samplers join late and leave at any time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, play
from runs import HERE, SCRIPTED, flags_of, write_tasks

from agentrl.store import open_store
from agentrl.types import RowStatus, Split, TaskStatus

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

RUN = "alone"
NUM_TASKS = 60


@dataclass(slots=True)
class Site:
    """Processes of one run, each started by hand, and its store."""

    folder: Path
    options: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, name: str, command: str, *flags: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "agentrl", command, f"--run_name={RUN}", *flags_of(self.options), *flags],
                cwd=self.folder,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)])},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes[name] = process
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def until(self, condition: Callable[[], Any], what: str, *, timeout: float = 90.0) -> Any:
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := condition():
                return found
            time.sleep(0.05)
        logs = "\n".join(f"--- {name}\n{self.log(name)[-2000:]}" for name in self.processes)
        raise AssertionError(f"{what} did not come within {timeout} s:\n{logs}")

    def ask(self, question: Callable[[Any], Any]) -> Any:
        async def asked() -> Any:
            store = open_store(self.url, run=RUN)
            await store.open()
            try:
                return await question(store)
            finally:
                await store.close()

        return asyncio.run(asked())

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'output' / RUN / 'run.db'}"

    def groups_of(self, process: subprocess.Popen[bytes]) -> list[str]:
        running = self.ask(lambda store: store.running_groups())
        return [group.task for group in running if f"/{process.pid}/" in group.owner]

    def stop_with_groups(self, name: str) -> list[str]:
        """Freeze a sampler at a moment when it plays; the groups it holds."""
        process = self.processes[name]

        def caught() -> list[str]:
            process.send_signal(signal.SIGSTOP)
            if held := self.groups_of(process):
                return held
            process.send_signal(signal.SIGCONT)
            time.sleep(0.05)
            return []

        return self.until(caught, f"a group of {name}")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    names = ("engine", "engine_script", "num_train_epochs", "sync_sampling", "save_steps")
    options = {name: value for name, value in SCRIPTED.items() if name not in names}
    options |= {"model_name_or_path": write_tasks(tmp_path, num_train=NUM_TASKS)["model_name_or_path"]}
    options |= {"target_concurrency": "4", "max_concurrent_samples_per_process": "4", "save_steps": "1000"}
    site = Site(tmp_path, options)
    try:
        yield site
    finally:
        for process in site.processes.values():
            process.kill()
            process.wait()


def engine_url(site: Site) -> str:
    """An engine that belongs to no run; slow enough for groups to be caught in progress."""
    site.start("engine", "serve", "--run_name=", "--engine=scripted", "--engine_script=script:slow_reply")
    return site.until(lambda: re.findall(r"serving .* at (http://\S+)", site.log("engine")), "the engine")[0]


def test_samplers_join_late_and_leave_at_any_time_and_every_group_is_finished_once(site: Site) -> None:
    site.options["engine_url"] = engine_url(site)
    trainer = site.start("trainer", "train", "--enable_sampling=false", "--sampler_timeout=120")
    early = site.start("early", "sample", f"--train_file={site.folder / 'train.jsonl'}")
    site.until(lambda: site.groups_of(early), "a group of the first sampler")
    late = site.start("late", "sample")
    site.until(lambda: site.groups_of(late), "a group of the late sampler")

    held = site.stop_with_groups("early")
    early.kill()
    early.wait()
    heir = site.start("heir", "sample")
    site.until(lambda: site.groups_of(heir), "a group of the third sampler")

    given_back = site.stop_with_groups("late")
    late.send_signal(signal.SIGTERM)
    late.send_signal(signal.SIGCONT)
    assert late.wait(30) == 0, site.log("late")
    assert not site.groups_of(late)
    assert trainer.wait(200) == 0, site.log("trainer")
    assert heir.wait(60) == 0, site.log("heir")

    tasks = site.ask(lambda store: store.find("task", split=Split.TRAIN))
    assert len(tasks) == NUM_TASKS
    assert {task.status for task in tasks} <= {TaskStatus.COMPLETED, TaskStatus.ABANDONED}
    assert {task.reason for task in tasks if task.status is TaskStatus.ABANDONED} <= {"no_signal"}
    assert all(task.claim_no > 1 for task in tasks if task.id in {*held, *given_back})
    states = site.ask(lambda store: store.row_states())
    assert {status for _, status, _, _ in states} == {RowStatus.TRAINED}
    records = site.ask(lambda store: store.find("record", status="scored"))
    played = Counter((record.task, record.slot) for record in records)
    assert set(played.values()) == {1}
    assert len(played) == NUM_TASKS * int(site.options["num_generations"])


def test_the_settings_a_sampler_alone_gets_wrong_are_told_in_time(site: Site) -> None:
    site.options |= {"engine_url": "http://127.0.0.1:9", "wait_timeout": "2"}
    missing = site.start("missing", "sample")
    assert missing.wait(60) == 1
    assert "there is no store sqlite:///output/alone/run.db (--db_connection_string) of run 'alone'" in site.log(
        "missing"
    )
    assert not (site.folder / "output").exists()
    unreachable = site.start("unreachable", "sample", f"--train_file={site.folder / 'train.jsonl'}")
    assert unreachable.wait(60) == 1
    assert "no engine answers at http://127.0.0.1:9 (--engine_url; waited 2 s, --wait_timeout)" in site.log(
        "unreachable"
    )
    assert site.ask(lambda store: store.workers()) == []
    mistyped = site.start("mistyped", "sample", "--run_name=alnoe", f"--db_connection_string={site.url}")
    assert mistyped.wait(60) == 1
    assert f"there is no run 'alnoe' (--run_name) in {site.url}: it holds alone" in site.log("mistyped")


def test_the_blocks_of_the_page_do_what_it_says(tmp_path: Path) -> None:
    printed = play(ROOT / "docs" / "asynchronous.md", tmp_path, timeout=200)
    assert "trained 6 steps; groups: " in printed
    assert "split: running, in output/split" in printed
    assert "step 4, version 4" in printed
    rows = (tmp_path / "output" / "split" / "metrics.jsonl").read_text()
    assert rows.count('"groups": 8.0') == 4
