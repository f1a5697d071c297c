"""A world of samplers, pushers and a trainer on one store, played by seed.

Every move is a store call or two, so a schedule is an interleaving of what processes could do. Anyone may die after a
move, come back late, be cut off while it writes, or find the disk full; the clock jumps. The rules that hold always are
checked against the documents along the way; at the end everybody lives on and the run has to finish.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from faults import CutOffError, Fault, FaultyStore
from store_documents import Clock, record, row, tasks, turn, worker

from agentrl.errors import LeaseLost
from agentrl.store import Admission, QueueCounts, TakeRule
from agentrl.store.sqlite import SqliteStore
from agentrl.types import Claim, GroupVerdict, Record, RecordStatus, Split, Task, TaskStatus, WeightVersion

EPOCHS = 2
GROUPS_PER_EPOCH = 5
GROUPS = EPOCHS * GROUPS_PER_EPOCH
SLOTS = 2
PER_STEP = 2
REUSES = ((1, 1), (2, 1), (3, 1), (2, 3))
"""(max_trained_count, retrained_interval)"""
MAX_ATTEMPTS = 3
DROP_STALENESS = 2
FAULT_SHARE = 0.06
"""Of moves that meet a fault, if they write."""
NUM_MOVES = 250
NEIGHBOUR = "neighbour"


@dataclass
class Owner:
    """A sampler at work on one claim. It may be late without knowing."""

    name: str
    claim: Claim
    turns: Counter[int] = field(default_factory=Counter)
    records: dict[int, Record] = field(default_factory=dict)
    unsure: dict[int, Record] = field(default_factory=dict)
    """Sent, but not answered: sent again as it is."""


@dataclass
class Checkpoint:
    step: int = 0
    version: int = 0
    rows: tuple[str, ...] = ()


class World:
    """``check_every``: how many moves lie between two checks of all documents; the schedule does not depend on it."""

    def __init__(self, store: SqliteStore, clock: Clock, seed: int, check_every: int = 1) -> None:
        self.store, self.clock, self.random = store, clock, random.Random(seed)
        self.check_every = check_every
        self.trace: list[str] = []
        self.faults: Counter[str] = Counter()
        self.owners: list[Owner] = []
        self.pushed = 0
        self.stream_closed = False
        self.now = Checkpoint()
        self.saved = Checkpoint()
        self.taken: tuple[str, ...] | None = None
        self.trainer_is_down = False
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
        self.neighbour = ""

    # --- Moves: pushers and samplers ---

    async def start(self) -> None:
        await self.store.publish_version(self.published[0])
        if isinstance(self.store, FaultyStore):
            self.neighbour = await furnish(self.store)

    async def push(self) -> None:
        """The next epoch, or one that somebody pushed already; after the last the stream is closed."""
        epoch = self.random.randint(0, min(self.pushed, EPOCHS - 1))
        await self.store.add_tasks(tasks(GROUPS_PER_EPOCH, slots=SLOTS, epoch=epoch))
        self.pushed = max(self.pushed, epoch + 1)
        if self.pushed == EPOCHS and not self.stream_closed:
            await self.store.end_stream(Split.TRAIN)
            self.stream_closed = True

    async def claim(self) -> None:
        self.num_workers += 1
        name = f"w{self.num_workers}"
        claim = await self.store.claim(name, splits=[Split.TRAIN], admission=self.pace)
        if claim is None:
            return
        await self.check_admission(claim)
        self.owners.append(Owner(name, claim, records={kept.slot: kept for kept in claim.finished}))

    async def work(self) -> None:
        """One write of one owner, whichever is next for it. One that is cut off may die of it or try again."""
        if not self.owners:
            return
        owner = self.random.choice(self.owners)
        try:
            await self.advance(owner)
        except LeaseLost:
            assert await self.is_late(owner.claim), "an owner in time was refused"
            self.owners.remove(owner)
        except CutOffError:
            if self.random.random() < 0.5:
                self.owners.remove(owner)
            raise

    async def advance(self, owner: Owner) -> None:
        open_slots = [slot for slot in range(SLOTS) if slot not in owner.records]
        if not open_slots:
            await self.finalise(owner)
            return
        slot = self.random.choice(open_slots)
        if slot in owner.unsure:
            await self.finish(owner, slot)
        elif owner.turns[slot] < 2 and self.random.random() < 0.6:
            latest = await self.store.latest_version()
            assert latest is not None
            await self.store.append_turn(
                owner.claim, turn(record(owner.claim, slot).id, owner.turns[slot], version=latest.version)
            )
            owner.turns[slot] += 1
        elif owner.turns[slot] > 0:
            owner.unsure[slot] = record(owner.claim, slot, value=self.random.random())
            await self.finish(owner, slot)

    async def finish(self, owner: Owner, slot: int) -> None:
        done = owner.unsure[slot]
        try:
            await self.store.finish_record(owner.claim, done)
        except LeaseLost:
            self.finished.add((done.id, str(done.final_answer)))
            raise
        self.finished.add((done.id, str(done.final_answer)))
        owner.records[slot] = owner.unsure.pop(slot)

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

    # --- Moves: the trainer ---

    async def take(self) -> None:
        if self.taken is not None or self.ended or self.trainer_is_down:
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
        assert taken.num_groups <= PER_STEP, "a step has too many groups"
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
        """Step, publish, save and die before the ack with these chances. A trainer that is cut off dies of it."""
        if self.trainer_is_down:
            await self.restore()
            return
        if self.taken is None:
            return
        self.trainer_is_down = True
        version = WeightVersion(
            version=await self.store.next_version(), step=self.now.step + 1, parent=self.now.version
        )
        self.published[version.version] = version
        await self.store.publish_version(version)
        self.now = Checkpoint(version.step, version.version, (*self.now.rows, *self.taken))
        self.taken = None
        if self.random.random() < save:
            self.saved = self.now
        if self.random.random() < die:
            return
        await self.store.ack(version.step)
        self.trainer_is_down = False

    async def restore(self) -> None:
        self.trainer_is_down, self.ended = True, False
        await self.store.rewind(self.saved.step, self.saved.version)
        await self.store.publish_version(WeightVersion(version=self.saved.version, step=self.saved.step, parent=None))
        self.now, self.taken = self.saved, None
        self.trainer_is_down = False

    # --- Rules ---

    async def check(self) -> None:
        uses = Counter(self.now.rows)
        assert max(uses.values(), default=0) <= self.uses, "a row was trained too often in one lineage"
        if not self.trainer_is_down:
            for each in await self.store.find("row", status="trained"):
                assert each.trained_count == uses[each.id], "a row does not know how often it was trained"
        trained_slots = Counter(each.rpartition("/")[0] for each in uses)
        assert set(trained_slots.values()) <= {1}, "two attempts of a slot were trained in one lineage"
        assert set(self.finalised.values()) <= {1}, "a group was finalised twice under one claim"
        found = await self.store.find("task")
        assert len({task.seq for task in found}) == len(found), "two groups have one seq"
        live = [(each, status) for each, status, *_ in await self.store.row_states() if status != "dropped"]
        by_task = Counter(each.rsplit("/", 2)[0] for each, _ in live)
        for task in found:
            if task.status is not TaskStatus.COMPLETED:
                assert by_task[task.id] == 0, "an unfinished group has rows to train"
        await self.check_counts(found, live)
        stored = {(each.id, str(each.final_answer)) for each in await self.store.find("record")}
        assert self.finished <= stored, "a finished record is lost"
        if isinstance(self.store, FaultyStore):
            assert look_of(self.store, NEIGHBOUR) == self.neighbour, "another run was touched"

    async def check_admission(self, claim: Claim) -> None:
        """For groups that are used once; the limit for reuse is tested on its own."""
        if self.uses > 1:
            return
        latest, counted = await self.store.latest_version(), await self.store.queue(Split.TRAIN)
        assert latest is not None
        made_up = sum(counted.abandoned.values()) + counted.empty + sum(counted.dropped.values()) + counted.pushed_again
        limit = (latest.step + self.pace.max_staleness + 1) * PER_STEP + made_up
        assert claim.task.seq < limit, "a group was admitted too early"

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
        walked_counts = QueueCounts(
            **{
                name: walked[name] for name in ("created", "running", "completed", "empty", "ready", "taken", "trained")
            },
            abandoned=counted.abandoned,
            dropped=counted.dropped,
            pushed_again=counted.pushed_again,
            fresh_taken=walked["taken"] + walked["trained"],
        )
        assert counted == walked_counts, "what was counted is not what is there"
        assert (abandoned, dropped) == (walked["abandoned"], walked["dropped"]), "groups without rows"
        calls = (await self.store.spending()).get("calls", 0)
        assert calls == await self.store.count("turn"), "a turn was not spent once"

    async def check_at_the_end(self) -> None:
        found = await self.store.find("task")
        assert len(found) == GROUPS, "an epoch was not pushed exactly once"
        assert {task.status for task in found} <= {TaskStatus.COMPLETED, TaskStatus.ABANDONED}, "a group did not end"
        assert await self.store.count("record", status=RecordStatus.RUNNING) == 0, "a record did not end"
        states = {each: status.value for each, status, *_ in await self.store.row_states()}
        assert {each for each, status in states.items() if status == "trained"} == set(self.now.rows), (
            "what is trained is not what the trainer trained"
        )
        assert set(states.values()) <= {"trained", "dropped"}, "a row did not end"

    # --- Schedules ---

    async def wander(self, moves: int) -> None:
        chances: dict[Callable[[], Awaitable[None]], float] = {
            self.push: 2,
            self.claim: 4,
            self.work: 30,
            self.time_passes: 2,
            self.take: 5,
            self.train: 5,
            self.release: 0.2,
            self.restore: 0.5,
        }
        for number, move in enumerate(self.random.choices(list(chances), list(chances.values()), k=moves)):
            await self.make(move, self.draw_fault())
            if number % self.check_every == self.check_every - 1:
                await self.check()

    def draw_fault(self) -> Fault | None:
        may_fail = self.random.random() < FAULT_SHARE
        fault = self.random.choices(list(Fault), [1, 1, 3])[0]
        return fault if may_fail and isinstance(self.store, FaultyStore) else None

    async def make(self, move: Callable[[], Awaitable[None]], fault: Fault | None = None) -> None:
        """A cut-off caller has left its own things in order: it died, or it will send again."""
        self.trace.append(move.__name__)
        if isinstance(self.store, FaultyStore):
            self.store.arm(fault)
        try:
            await move()
        except CutOffError as error:
            self.faults[str(error)] += 1
            self.trace[-1] += f" ({error})"
        finally:
            if isinstance(self.store, FaultyStore):
                self.store.arm(None)

    async def live_on(self) -> None:
        """Nobody dies any more: each left group is worked off by a new owner, and each step is trained and saved."""
        self.clock.now += 100_000.0
        self.owners.clear()
        while not self.stream_closed:
            await self.make(self.push)
        for _ in range(400):
            await self.make(self.claim)
            for _ in range(12):
                await self.make(self.work)
            await self.make(self.take)
            if self.ended:
                return
            await self.make(self.train_and_save)
        raise AssertionError("the run does not come to its end")

    async def train_and_save(self) -> None:
        await self.train(save=1.0, die=0.0)


async def furnish(store: FaultyStore) -> str:
    """Another run in the same database, in the middle of its work; returns what it looks like."""
    other = store.neighbour(NEIGHBOUR)
    await other.publish_version(WeightVersion(version=0, step=0, parent=None))
    await other.add_tasks(tasks(3, slots=SLOTS))
    for name in ("n1", "n2"):
        claim = await other.claim(name, splits=[Split.TRAIN])
        assert claim is not None
        await other.append_turn(claim, turn(record(claim, 0).id))
        await other.finish_record(claim, record(claim, 0))
    await other.finalize_group(claim, GroupVerdict(slots={0: 1.0}), [row(claim, record(claim, 0))])
    return look_of(store, NEIGHBOUR)


def look_of(store: FaultyStore, run: str) -> str:
    """Every row of ``run`` in every table."""
    db = store.database()
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    with_run = [name for name in names if "run" in {column[1] for column in db.execute(f"PRAGMA table_info({name})")}]
    return repr(
        [[tuple(each) for each in db.execute(f"SELECT * FROM {name} WHERE run = ?", (run,))] for name in with_run]
    )


async def play(store: SqliteStore, clock: Clock, seed: int, *, check_every: int = 1) -> World:
    """One schedule to its end. What fails carries the seed and the last moves with it."""
    await store.open()
    world = World(store, clock, seed, check_every)
    try:
        await world.start()
        await world.wander(NUM_MOVES)
        await world.live_on()
        await world.check()
        await world.check_at_the_end()
    except Exception as error:
        error.add_note(f"schedule {seed}, move {len(world.trace)}; the last: {', '.join(world.trace[-12:])}")
        raise
    finally:
        await store.close()
    return world


def faulty_store(clock: Clock) -> FaultyStore:
    return FaultyStore(run="run", clock=clock, max_attempts=MAX_ATTEMPTS)
