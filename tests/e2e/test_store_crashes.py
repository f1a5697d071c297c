"""kill -9 of samplers and trainer at seeded points: what was told to be written is there, and nothing counts twice."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import store_actors
from store_actors import LEASE_SECONDS, open_actor_store

from agentrl.types import Split, Task

NUM_KILLS = 10
NUM_SAMPLERS = 3
TRAIN_GROUPS = 120
EVAL_GROUPS = 4
SLOTS = 3
RUN_SECONDS = 50.0
TRAINER, STOPPING, FINISHING = RESERVED = ("trainer.1", "sampler0.2", "sampler1.3")
"""First lives: dies between save and ack, wakes up as a late owner, dies right after a record was stored."""
SLACK_SECONDS = 4.0
"""Start of a process and of a busy machine; a lease is 1 s."""


@dataclass
class Host:
    """Starts the actors, kills them, starts them again under new names."""

    folder: Path
    random: random.Random
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    deaths: dict[str, float] = field(default_factory=dict)
    starts: int = 0

    def start(self, role: str) -> None:
        self.starts += 1
        name = self.names[role] = f"{role}.{self.starts}"
        kind = "trainer" if role == "trainer" else "sampler"
        arguments = [kind, str(self.folder), name, str(self.random.randint(0, 10**6)), self.fate(role)]
        log = (self.folder / f"{name}.err").open("wb")
        self.processes[role] = subprocess.Popen([sys.executable, store_actors.__file__, *arguments], stderr=log)
        log.close()

    def fate(self, role: str) -> str:
        """First lives end where it hurts most; of later ones half at a moment of their own, while kills are left."""
        first = {"trainer": "kill:saved:1", "sampler0": "stop:finished:1", "sampler1": "kill:finished:2"}
        if role in first and role not in self.processes:
            return first[role]
        if len(self.deaths) >= NUM_KILLS or self.random.random() < 0.5:
            return "live"
        moments = {"point": 60, "finished": 6, "finalised": 3}
        if role == "trainer":
            moments = {"point": 25, "taken": 4, "saved": 2, "trained": 4}
        event = self.random.choice(list(moments))
        return f"kill:{event}:{self.random.randint(1, moments[event])}"

    def wake(self) -> None:
        """Continue what stopped itself, after its lease has run out: a late owner."""
        for path in self.folder.glob("sampler*.jsonl"):
            last = path.read_text().splitlines()[-1:]
            event = json.loads(last[0]) if last else {"event": ""}
            if event["event"] == "stopped" and time.time() > event["time"] + 1.8 * LEASE_SECONDS:
                self.processes[path.stem.partition(".")[0]].send_signal(signal.SIGCONT)

    def bury(self) -> None:
        """Start what killed itself again; anything else that ended has to have ended well."""
        for role, process in list(self.processes.items()):
            if process.poll() is None or process.returncode == 0:
                continue
            assert process.returncode == -signal.SIGKILL, (self.folder / f"{self.names[role]}.err").read_text()
            self.deaths[self.names[role]] = time.time()
            self.start(role)

    def kill_one(self) -> None:
        running = [
            role for role in self.processes if self.processes[role].poll() is None and self.names[role] not in RESERVED
        ]
        if running:
            self.processes[self.random.choice([*running, *running[:1]])].kill()
            time.sleep(0.01)

    def done(self) -> bool:
        return all(process.poll() == 0 for process in self.processes.values())


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    hosts: list[Host] = []
    yield hosts
    for host in hosts:
        for process in host.processes.values():
            process.kill()
            process.wait()


async def push(folder: Path) -> None:
    store = open_actor_store(folder)
    await store.open()
    train = [Task(task_id=f"q{i}", query="q", num_slots=SLOTS) for i in range(TRAIN_GROUPS)]
    held_out = [Task(task_id=f"e{i}", query="q", num_slots=1, split=Split.EVAL) for i in range(EVAL_GROUPS)]
    await store.add_tasks([*train, *held_out])
    await store.end_stream(Split.TRAIN)
    await store.close()


def run_with_kills(host: Host) -> None:
    for role in ("trainer", *(f"sampler{i}" for i in range(NUM_SAMPLERS))):
        host.start(role)
    deadline = time.time() + RUN_SECONDS
    next_kill = time.time() + 0.8
    while not host.done():
        assert time.time() < deadline, f"still running after {RUN_SECONDS} s; deaths: {host.deaths}"
        if time.time() > next_kill and len(host.deaths) < NUM_KILLS:
            host.kill_one()
            next_kill = time.time() + host.random.uniform(0.1, 0.6)
        host.bury()
        host.wake()
        time.sleep(0.01)


@dataclass
class Found:
    tasks: list[Any]
    records: list[Any]
    rows: list[tuple[str, str, int | None, str]]
    finals: dict[str, Any]
    events: list[dict[str, Any]]
    trained: list[tuple[str, list[int]]]
    versions: dict[int, int | None]
    final_version: int


async def look(folder: Path) -> Found:
    store = open_actor_store(folder)
    await store.open()
    events = [
        {"actor": path.stem, **json.loads(line)}
        for path in folder.glob("*.jsonl")
        for line in path.read_text().splitlines()
    ]
    tasks = await store.find("task")
    checkpoint = json.loads((folder / "checkpoint.json").read_text())
    found = Found(
        tasks=tasks,
        records=await store.find("record"),
        rows=await store.row_states(),
        finals={task.id: await store.verdict(task.id) for task in tasks},
        events=events,
        trained=checkpoint["rows"],
        versions={version.version: version.parent for version in await store.find("version")},
        final_version=checkpoint["version"],
    )
    await store.close()
    return found


def of_kind(found: Found, event: str) -> list[dict[str, Any]]:
    return [each for each in found.events if each["event"] == event]


def check_every_slot_is_terminal(found: Found) -> None:
    assert Counter(task.split.value for task in found.tasks) == {"train": TRAIN_GROUPS, "eval": EVAL_GROUPS}
    assert {task.status.value for task in found.tasks} <= {"completed", "abandoned"}
    assert not [record.id for record in found.records if record.status == "running"]
    for task in found.tasks:
        if task.status == "completed":
            assert set(found.finals[task.id].slots) == set(range(task.num_slots))


def check_no_finished_record_is_lost(found: Found) -> None:
    stored = {(record.id, record.final_answer) for record in found.records}
    told = {(each["record"], each["answer"]) for each in of_kind(found, "finished")}
    assert told <= stored


def check_groups_are_finalised_once(found: Found) -> None:
    per_claim = Counter((each["task"], each["claim_no"]) for each in of_kind(found, "finalised"))
    assert set(per_claim.values()) == {1}


def check_no_row_is_trained_twice_in_the_surviving_lineage(found: Found) -> None:
    lineage: set[int] = set()
    version: int | None = found.final_version
    while version is not None:
        lineage.add(version)
        version = found.versions[version]
    ids = [row for row, _ in found.trained]
    assert len(ids) == len(set(ids))
    slots = Counter(row.rpartition("/")[0] for row in ids)
    assert set(slots.values()) == {1}
    assert all(set(versions) <= lineage for _, versions in found.trained)
    assert {row for row, status, *_ in found.rows if status == "trained"} == set(ids)
    assert {status for _, status, *_ in found.rows} <= {"trained", "dropped"}


def check_every_group_is_trained_or_accounted_for(found: Found) -> None:
    trained = {row.rsplit("/", 2)[0] for row, _ in found.trained}
    for task in found.tasks:
        if task.split == "train" and task.status == "completed" and task.id not in trained:
            own = [(status, reason) for row, status, _, reason in found.rows if row.startswith(f"{task.id}/")]
            no_row = all(isinstance(value, str) for value in found.finals[task.id].slots.values())
            assert no_row or ("dropped", "stale") in own, task
    assert len(trained) >= TRAIN_GROUPS - NUM_KILLS


def check_nobody_waits_longer_than_a_lease(found: Found, deaths: dict[str, float]) -> None:
    """From the death of a group's owner to its next claim."""
    claims = {(each["task"], each["claim_no"]): each for each in of_kind(found, "claimed")}
    for (task, claim_no), claim in claims.items():
        following = claims.get((task, claim_no + 1))
        died = deaths.get(claim["actor"])
        if died is not None and following is not None and claim["time"] < died < following["time"]:
            finalised = (each for each in of_kind(found, "finalised") if each["task"] == task)
            if claim_no not in {each["claim_no"] for each in finalised}:
                assert following["time"] - died < LEASE_SECONDS + SLACK_SECONDS


def survive_ten_kills(folder: Path, seed: int, hosts: list[Host]) -> None:
    asyncio.run(push(folder))
    host = Host(folder, random.Random(seed))
    hosts.append(host)
    run_with_kills(host)
    assert len(host.deaths) >= NUM_KILLS
    assert {TRAINER, FINISHING} <= set(host.deaths)
    found = asyncio.run(look(folder))
    assert STOPPING in {each["actor"] for each in of_kind(found, "lost")}
    check_every_slot_is_terminal(found)
    check_no_finished_record_is_lost(found)
    check_groups_are_finalised_once(found)
    check_no_row_is_trained_twice_in_the_surviving_lineage(found)
    check_every_group_is_trained_or_accounted_for(found)
    check_nobody_waits_longer_than_a_lease(found, host.deaths)


@pytest.mark.ci
@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_kills_lose_nothing_and_double_nothing(tmp_path: Path, seed: int, hosts: list[Host]) -> None:
    survive_ten_kills(tmp_path, seed, hosts)


@pytest.mark.long
@pytest.mark.timeout(90)
@pytest.mark.parametrize("seed", range(10, 20))
def test_a_hundred_kills_lose_nothing_and_double_nothing(tmp_path: Path, seed: int, hosts: list[Host]) -> None:
    survive_ten_kills(tmp_path, seed, hosts)


@pytest.mark.ci
def test_eight_processes_push_each_epoch_once_though_two_are_killed(tmp_path: Path, hosts: list[Host]) -> None:
    host = Host(tmp_path, random.Random(0))
    hosts.append(host)
    for number in range(8):
        arguments = ["pusher", str(tmp_path), f"pusher{number}", str(number), "kill:pushed:1" if number < 2 else "live"]
        host.processes[f"pusher{number}"] = subprocess.Popen([sys.executable, store_actors.__file__, *arguments])
    codes = [process.wait(30) for process in host.processes.values()]
    assert codes == [-signal.SIGKILL] * 2 + [0] * 6
    found = asyncio.run(look_at_tasks(tmp_path))
    assert [task.seq for task in found] == list(range(400))
    assert len({task.id for task in found}) == 400
    pushed = [json.loads(line)["new"] for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    assert sorted(new for new in pushed if new) == [200, 200]


async def look_at_tasks(folder: Path) -> list[Task]:
    store = open_actor_store(folder)
    await store.open()
    found = await store.find("task")
    await store.close()
    return found
