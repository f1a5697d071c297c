"""A sampler, a trainer and a pusher without models, to be killed: ``store_actors.py KIND FOLDER NAME SEED FATE``.

They do with the store what the real ones do, in the same order, and write down what they were told is done: one JSON
object a line in FOLDER/NAME.jsonl. FATE is ``live``, ``kill:EVENT:N`` or ``stop:EVENT:N``: what an actor does to itself
right after it wrote the N-th EVENT down (``point`` is any moment between two operations).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from agentrl.errors import LeaseLost
from agentrl.store import Admission, Store, TakeRule, open_store
from agentrl.types import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    GroupVerdict,
    Outcome,
    Record,
    RecordStatus,
    Sampling,
    Score,
    Split,
    Task,
    TurnSpan,
    VersionSpan,
    WeightVersion,
    Worker,
)

RUN = "crash"
GROUPS_PER_STEP = 2
SAVE_STEPS = 2
LEASE_SECONDS = 1.0
POLL_SECONDS = 0.02
ADMISSION = Admission(groups_per_step=GROUPS_PER_STEP, max_staleness=1)


def open_actor_store(folder: Path) -> Store:
    return open_store(f"sqlite:///{folder}/run.db", run=RUN, lease_seconds=LEASE_SECONDS)


class Life:
    """What an actor has seen, and when it ends."""

    def __init__(self, folder: Path, name: str, seed: int, fate: str) -> None:
        self.folder, self.name, self.fate = folder, name, fate
        self.random = random.Random(f"{name}/{seed}")
        self.events: Counter[str] = Counter()
        self._log = os.open(folder / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, **fields: Any) -> None:
        os.write(self._log, (json.dumps({"event": event, "time": time.time(), **fields}) + "\n").encode())
        self.reach(event)

    def reach(self, event: str) -> None:
        self.events[event] += 1
        if self.fate == f"kill:{event}:{self.events[event]}":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fate == f"stop:{event}:{self.events[event]}":
            self.note("stopped")
            os.kill(os.getpid(), signal.SIGSTOP)

    async def point(self) -> None:
        self.reach("point")
        await asyncio.sleep(self.random.uniform(0, 0.01))


async def beat(store: Store, name: str, kind: str) -> None:
    while True:
        await store.heartbeat(Worker(id=name, kind=kind, host="here", pid=os.getpid()))
        await asyncio.sleep(LEASE_SECONDS / 6)


async def push_epochs(store: Store, life: Life) -> None:
    """Two epochs, one call each, as every process that starts a run does it."""
    for epoch in range(2):
        epoch_tasks = [Task(task_id=f"q{i}", query="q", epoch=epoch) for i in range(200)]
        life.note("pushed", new=await store.add_tasks(epoch_tasks))
        await life.point()
    await store.end_stream(Split.TRAIN)


# --- Sampler ---------------------------------------------------------------------------------------------------------


async def sample(store: Store, life: Life) -> None:
    while True:
        claim = await store.claim(life.name, splits=[Split.EVAL, Split.TRAIN], admission=ADMISSION)
        if claim is None:
            if await store.get_state("done"):
                return
            await asyncio.sleep(POLL_SECONDS)
            continue
        life.note("claimed", task=claim.task.id, claim_no=claim.claim_no)
        await life.point()
        try:
            await rollout_group(store, life, claim)
        except LeaseLost:
            life.note("lost", task=claim.task.id, claim_no=claim.claim_no)


async def rollout_group(store: Store, life: Life, claim: Claim) -> None:
    kept = {record.slot: record for record in claim.finished}
    fresh = [slot for slot in range(claim.task.num_slots) if slot not in kept]
    played = await asyncio.gather(*(rollout(store, life, claim, slot) for slot in fresh))
    records = [*kept.values(), *played]
    scored = [record for record in records if record.status is RecordStatus.SCORED]
    verdict = GroupVerdict(slots={record.slot: 1.0 if record in scored else record.status.value for record in records})
    rows = [await row_of(store, claim, record) for record in scored] if claim.task.split is Split.TRAIN else []
    await life.point()
    if await store.finalize_group(claim, verdict, rows):
        life.note("finalised", task=claim.task.id, claim_no=claim.claim_no)
    await life.point()


async def rollout(store: Store, life: Life, claim: Claim, slot: int) -> Record:
    record = Record(
        task=claim.task.id,
        slot=slot,
        attempt=claim.next_attempt[slot],
        status=RecordStatus.SCORED,
        outcome=Outcome.ANSWERED,
        final_answer=f"{life.name}:{life.random.random()}",
        scores=(Score(value=1.0),),
        num_turns=life.random.randint(1, 3),
    )
    for number in range(record.num_turns):
        await life.point()
        version = await store.latest_version()
        await store.append_turn(claim, turn(record.id, number, version.version if version else 0))
    await life.point()
    await store.finish_record(claim, record)
    life.note("finished", record=record.id, answer=record.final_answer)
    await life.point()
    return record


def turn(record: str, number: int, version: int) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(
        record=record,
        turn=number,
        parent=number - 1 if number else None,
        prompt_ids_delta=(1, 2, 3),
        token_ids=(4, 5),
        logprobs=(-0.1, -0.2),
        version_spans=(VersionSpan(start=0, end=2, version=version),),
        sampling=Sampling(max_new_tokens=2),
        finish_reason="stop",
    )


async def row_of(store: Store, claim: Claim, record: Record) -> DBRecordData:
    """The row of a record from its stored turns, as a sampler that took the group over has to make it."""
    turns = await store.find("turn", record=record.id)
    versions = [turn.version_spans[0].version for turn in turns]
    return DBRecordData(
        record=record.id,
        task=claim.task.id,
        seq=claim.task.seq,
        slot=record.slot,
        token_ids=(4,) * len(turns),
        mask=(1,) * len(turns),
        behavior_logprobs=(-0.1,) * len(turns),
        versions=versions,
        turns=(TurnSpan(start=0, end=len(turns), parent=-1, advantage=1.0),),
        start_version=min(versions),
        end_version=max(versions),
    )


# --- Trainer ---------------------------------------------------------------------------------------------------------


class Weights:
    """What a checkpoint holds: step, version, and in place of tensors every row that formed them, with its versions."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "checkpoint.json"
        self.state = (
            json.loads(self._path.read_text()) if self._path.exists() else {"step": 0, "version": 0, "rows": []}
        )

    def save(self) -> None:
        unfinished = self._path.with_suffix(".tmp")
        unfinished.write_text(json.dumps(self.state))
        unfinished.replace(self._path)


async def train(store: Store, life: Life) -> None:
    weights = Weights(life.folder)
    state = weights.state
    if await store.latest_version() is None:
        await store.publish_version(WeightVersion(version=0, step=0, parent=None))
    life.note("rewound", **await store.rewind(state["step"], state["version"]), step=state["step"])
    await life.point()
    await store.publish_version(WeightVersion(version=state["version"], step=state["step"], parent=None))
    while True:
        rule = TakeRule(step=state["step"] + 1, version=state["version"], num_groups=GROUPS_PER_STEP)
        taken = await store.take(rule)
        if taken is None:
            await asyncio.sleep(POLL_SECONDS)
            continue
        life.note("taken", step=rule.step, groups=taken.num_groups)
        await life.point()
        if taken.rows:
            await step(store, life, weights, [(row.id, list(row.versions)) for row in taken.rows])
        if taken.end_of_stream:
            weights.save()
            await life.point()
            await store.ack(state["step"])
            await store.set_state("done", True)
            return


async def step(store: Store, life: Life, weights: Weights, rows: list[tuple[str, list[int]]]) -> None:
    """Step, publish, save if due, ack: the order of the real loop."""
    state = weights.state
    new = WeightVersion(version=await store.next_version(), step=state["step"] + 1, parent=state["version"])
    state.update(step=new.step, version=new.version, rows=state["rows"] + rows)
    await life.point()
    await store.publish_version(new)
    await life.point()
    if new.step % SAVE_STEPS == 0:
        weights.save()
        life.note("saved", step=new.step)
    await life.point()
    await store.ack(new.step)
    life.note("trained", step=new.step, version=new.version, rows=len(rows))
    await life.point()


async def main(kind: str, folder: str, name: str, seed: str, fate: str) -> None:
    life = Life(Path(folder), name, int(seed), fate)
    store = open_actor_store(life.folder)
    await store.open()
    heartbeat = asyncio.create_task(beat(store, name, kind))
    await {"sampler": sample, "trainer": train, "pusher": push_epochs}[kind](store, life)
    heartbeat.cancel()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
