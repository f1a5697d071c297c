"""The rules of the state machine on seeded schedules of samplers, a trainer that crashes, and a jumping clock.

Every move is a store call or two, so a schedule is an interleaving of what processes could do. After each move the
rules that hold always are checked against the documents; at the end everybody lives on and the run has to finish.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from store_documents import Clock, record, row, tasks, turn, worker

from agentrl.errors import LeaseLost
from agentrl.store import Admission, QueueCounts, TakeRule
from agentrl.store.sqlite import SqliteStore
from agentrl.types import Claim, GroupVerdict, Record, RecordStatus, Split, Task, TaskStatus, WeightVersion

GROUPS = 10
SLOTS = 2
PER_STEP = 2
REUSES = ((1, 1), (2, 1), (3, 1), (2, 3))
"""(max_trained_count, retrained_interval)"""
MAX_ATTEMPTS = 3
COUNTED = ("created", "running", "completed", "empty", "ready", "taken", "trained")
DROP_STALENESS = 2


@dataclass
class Owner:
    """A sampler at work on one claim. It may be late without knowing."""

    name: str
    claim: Claim
    turns: Counter[int] = field(default_factory=Counter)
    records: dict[int, Record] = field(default_factory=dict)


@dataclass
class Checkpoint:
    step: int = 0
    version: int = 0
    rows: tuple[str, ...] = ()


class World:
    def __init__(self, store: SqliteStore, clock: Clock, seed: int) -> None:
        self.store, self.clock, self.random = store, clock, random.Random(seed)
        self.owners: list[Owner] = []
        self.now = Checkpoint()
        self.saved = Checkpoint()
        self.taken: tuple[str, ...] | None = None
        self.num_workers = 0
        self.finalised: Counter[tuple[str, int]] = Counter()
        self.finished: set[tuple[str, str]] = set()
        self.ended = False
        self.published = {0: WeightVersion(version=0, step=0, parent=None)}
        self.uses, self.interval = REUSES[seed % len(REUSES)]
        self.drop_staleness = DROP_STALENESS + (self.uses - 1) * self.interval
        self.pace = Admission(
            groups_per_step=PER_STEP, max_staleness=1, max_trained_count=self.uses, retrained_interval=self.interval
        )

    # --- Moves ---

    async def start(self) -> None:
        await self.store.add_tasks(tasks(GROUPS, slots=SLOTS))
        await self.store.end_stream(Split.TRAIN)
        await self.store.publish_version(self.published[0])

    async def claim(self) -> bool:
        self.num_workers += 1
        name = f"w{self.num_workers}"
        claim = await self.store.claim(name, splits=[Split.TRAIN], admission=self.pace)
        if claim is None:
            return False
        self.owners.append(Owner(name, claim, records={kept.slot: kept for kept in claim.finished}))
        return True

    async def work(self) -> None:
        """One write of one owner, whichever is next for it."""
        if not self.owners:
            return
        owner = self.random.choice(self.owners)
        try:
            await self.advance(owner)
        except LeaseLost:
            assert await self.is_late(owner.claim)
            self.owners.remove(owner)

    async def advance(self, owner: Owner) -> None:
        open_slots = [slot for slot in range(SLOTS) if slot not in owner.records]
        if not open_slots:
            await self.finalise(owner)
            return
        slot = self.random.choice(open_slots)
        if owner.turns[slot] < 2 and self.random.random() < 0.6:
            latest = await self.store.latest_version()
            assert latest is not None
            await self.store.append_turn(
                owner.claim, turn(record(owner.claim, slot).id, owner.turns[slot], version=latest.version)
            )
            owner.turns[slot] += 1
            return
        if owner.turns[slot] == 0:
            return
        done = record(owner.claim, slot, value=self.random.random())
        self.finished.add((done.id, str(done.final_answer)))
        await self.store.finish_record(owner.claim, done)
        owner.records[slot] = done

    async def finalise(self, owner: Owner) -> None:
        claim = owner.claim
        rows = []
        slots: dict[int, float | str] = {}
        for slot, kept in owner.records.items():
            if kept.status is not RecordStatus.SCORED:
                slots[slot] = kept.status.value
                continue
            slots[slot] = 1.0
            turns = await self.store.find("turn", record=kept.id)
            rows.append(row(claim, kept, versions=[each.version_spans[0].version for each in turns]))
        if await self.store.finalize_group(claim, GroupVerdict(slots=slots), rows):
            self.finalised[(claim.task.id, claim.claim_no)] += 1
        if self.random.random() < 0.7:
            self.owners.remove(owner)

    async def is_late(self, claim: Claim) -> bool:
        (task,) = await self.store.find("task", id=claim.task.id)
        return task.claim_no > claim.claim_no or task.status is not TaskStatus.RUNNING

    async def release(self) -> None:
        if self.owners:
            owner = self.owners.pop(self.random.randrange(len(self.owners)))
            if not await self.is_late(owner.claim):
                await self.store.release(owner.claim)

    async def time_passes(self) -> None:
        """Some owners are heard of, the others' leases run out; sometimes the clock jumps."""
        self.clock.now += self.random.choice([5.0, 20.0, 31.0, 31.0, -3600.0])
        for owner in self.owners:
            if self.random.random() < 0.5:
                await self.store.heartbeat(worker(owner.name))

    async def take(self) -> None:
        if self.taken is not None or self.ended:
            return
        taken = await self.store.take(
            TakeRule(
                step=self.now.step + 1,
                version=self.now.version,
                num_groups=PER_STEP,
                drop_staleness=self.drop_staleness,
                in_order=self.random.random() < 0.3,
                max_trained_count=self.uses,
                retrained_interval=self.interval,
            )
        )
        if taken is None:
            return
        assert [(each.seq, each.slot) for each in taken.rows] == sorted((each.seq, each.slot) for each in taken.rows)
        assert taken.num_groups <= PER_STEP
        for each in taken.rows:
            assert set(each.versions) - {-1} <= self.lineage(), "a row of weights that are no ancestors is trained"
            assert self.now.step - self.published[each.start_version].step <= self.drop_staleness, (
                "a stale row is trained"
            )
        if taken.rows:
            self.taken = tuple(each.id for each in taken.rows)
        self.ended = taken.end_of_stream and not taken.rows

    def lineage(self) -> set[int]:
        found: set[int] = set()
        version: int | None = self.now.version
        while version is not None:
            found.add(version)
            version = self.published[version].parent
        return found

    async def train(self, *, save: float = 0.4, die: float = 0.2) -> None:
        """Step, publish, save and die before the ack with these chances."""
        if self.taken is None:
            return
        version = WeightVersion(
            version=await self.store.next_version(), step=self.now.step + 1, parent=self.now.version
        )
        self.now = Checkpoint(version.step, version.version, (*self.now.rows, *self.taken))
        self.taken = None
        self.published[version.version] = version
        await self.store.publish_version(version)
        if self.random.random() < save:
            self.saved = self.now
        if self.random.random() < die:
            await self.restore()
            return
        await self.store.ack(version.step)

    async def restore(self) -> None:
        self.now, self.taken, self.ended = self.saved, None, False
        await self.store.rewind(self.now.step, self.now.version)
        await self.store.publish_version(WeightVersion(version=self.now.version, step=self.now.step, parent=None))

    # --- Rules ---

    async def check(self) -> None:
        uses = Counter(self.now.rows)
        assert max(uses.values(), default=0) <= self.uses, "a row was trained too often in one lineage"
        for each in await self.store.find("row", status="trained"):
            assert each.trained_count == uses[each.id], "a row does not know how often it was trained"
        trained_slots = Counter(each.rpartition("/")[0] for each in uses)
        assert set(trained_slots.values()) <= {1}, "two attempts of a slot were trained in one lineage"
        assert set(self.finalised.values()) <= {1}, "a group was finalised twice under one claim"
        found = await self.store.find("task")
        assert len({task.seq for task in found}) == GROUPS, "two groups have one seq"
        live = [(each, status) for each, status, *_ in await self.store.row_states() if status != "dropped"]
        by_task = Counter(each.rsplit("/", 2)[0] for each, _ in live)
        for task in found:
            if task.status is not TaskStatus.COMPLETED:
                assert by_task[task.id] == 0, "an unfinished group has rows to train"
        await self.check_counts(found, live)
        stored = {(each.id, str(each.final_answer)) for each in await self.store.find("record")}
        assert self.finished <= stored, "a finished record is lost"

    async def check_counts(self, found: list[Task], live: list[tuple[str, str]]) -> None:
        """What is counted along the way is what a walk over the documents counts."""
        states = {each.rsplit("/", 2)[0]: status for each, status in live}
        walked: Counter[str] = Counter()
        for task in found:
            walked[task.status.value] += 1
            if task.status is TaskStatus.COMPLETED:
                verdict = await self.store.verdict(task.id)
                assert verdict is not None
                had_rows = any(isinstance(value, float) for value in verdict.slots.values())
                walked[states.get(task.id, "dropped" if had_rows else "empty")] += 1
        counted = await self.store.queue(Split.TRAIN)
        abandoned, dropped = sum(counted.abandoned.values()), sum(counted.dropped.values())
        assert counted == QueueCounts(
            **{
                name: walked[name] for name in ("created", "running", "completed", "empty", "ready", "taken", "trained")
            },
            abandoned=counted.abandoned,
            dropped=counted.dropped,
            pushed_again=counted.pushed_again,
            fresh_taken=walked["taken"] + walked["trained"],
        )
        assert (abandoned, dropped) == (walked["abandoned"], walked["dropped"])
        assert (await self.store.spending()).get("calls", 0) == await self.store.count("turn")

    async def check_at_the_end(self) -> None:
        found = await self.store.find("task")
        assert {task.status for task in found} <= {TaskStatus.COMPLETED, TaskStatus.ABANDONED}
        assert await self.store.count("record", status=RecordStatus.RUNNING) == 0
        states = {each: status.value for each, status, *_ in await self.store.row_states()}
        assert {each for each, status in states.items() if status == "trained"} == set(self.now.rows)
        assert set(states.values()) <= {"trained", "dropped"}

    # --- Schedules ---

    async def wander(self, moves: int) -> None:
        chances = {
            self.claim: 4,
            self.work: 30,
            self.time_passes: 2,
            self.take: 5,
            self.train: 5,
            self.release: 0.2,
            self.restore: 0.5,
        }
        for move in self.random.choices(list(chances), list(chances.values()), k=moves):
            await move()
            await self.check()

    async def live_on(self) -> None:
        """Nobody dies any more: each left group is worked off by a new owner, and each step is trained and saved."""
        self.clock.now += 100_000.0
        self.owners.clear()
        for _ in range(400):
            await self.claim()
            for _ in range(12):
                await self.work()
            await self.take()
            if self.ended:
                return
            await self.train(save=1.0, die=0.0)
            await self.check()
        raise AssertionError("the run does not come to its end")


def play(folder: Path, seed: int) -> None:
    async def schedule() -> None:
        clock = Clock()
        store = SqliteStore(folder / f"{seed}.db", run="run", clock=clock, max_attempts=MAX_ATTEMPTS)
        await store.open()
        world = World(store, clock, seed)
        await world.start()
        try:
            await world.wander(250)
            await world.live_on()
            await world.check()
            await world.check_at_the_end()
        except BaseException as error:
            error.add_note(f"schedule {seed}")
            raise
        finally:
            await store.close()

    asyncio.run(schedule())


@pytest.mark.parametrize("block", range(10))
def test_the_rules_hold_on_forty_schedules(tmp_path: Path, block: int) -> None:
    for seed in range(block * 4, block * 4 + 4):
        play(tmp_path, seed)


@pytest.mark.ci
@pytest.mark.parametrize("block", range(4))
def test_the_rules_hold_on_three_hundred_schedules(tmp_path: Path, block: int) -> None:
    for seed in range(1000 + block * 75, 1075 + block * 75):
        play(tmp_path, seed)
