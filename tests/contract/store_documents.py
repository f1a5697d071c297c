"""Small documents for store tests, and the moves of a sampler and a trainer in one call each."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.store import Admission, Store, Taken, TakeRule
from agentrl.store.sqlite import SqliteStore
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

Open = Callable[..., Awaitable[Any]]
TRAIN = [Split.TRAIN]
ONE_GROUP = Admission(groups_per_step=1, max_staleness=1)


@dataclass
class Clock:
    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine function."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 60))

    return run


def sqlite_backend(folder: Path) -> Open:
    async def make(run: str = "run", **options: Any) -> SqliteStore:
        store = SqliteStore(folder / "run.db", run=run, **options)
        await store.open()
        return store

    return make


BACKENDS: dict[str, Callable[[Path], Open]] = {"sqlite": sqlite_backend}
"""What opens stores in a folder, for every backend the contract is tested on."""


def tasks(count: int, *, split: Split = Split.TRAIN, slots: int = 2, epoch: int = 0) -> list[Task]:
    return [
        Task(task_id=f"q{i}", query=f"question {i}", split=split, num_slots=slots, epoch=epoch) for i in range(count)
    ]


def turn(record: str, number: int = 0, *, version: int = 0, size: int = 3) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(
        record=record,
        turn=number,
        parent=number - 1 if number else None,
        prompt_ids_delta=tuple(range(size)),
        token_ids=tuple(range(100, 100 + size)),
        logprobs=(-0.5,) * size,
        version_spans=(VersionSpan(start=0, end=size, version=version),),
        sampling=Sampling(max_new_tokens=16),
        finish_reason="stop",
    )


def record(claim: Claim, slot: int, attempt: int | None = None, *, value: float = 1.0) -> Record:
    return Record(
        task=claim.task.id,
        slot=slot,
        attempt=claim.next_attempt[slot] if attempt is None else attempt,
        status=RecordStatus.SCORED,
        outcome=Outcome.ANSWERED,
        final_answer=str(value),
        scores=(Score(value=value),),
    )


def row(claim: Claim, record: Record, *, versions: Sequence[int] = (0,), advantage: float = 1.0) -> DBRecordData:
    sampled = len(versions)
    return DBRecordData(
        record=record.id,
        task=claim.task.id,
        seq=claim.task.seq,
        slot=record.slot,
        token_ids=(7, *range(100, 100 + sampled)),
        mask=(0, *[1] * sampled),
        behavior_logprobs=(float("nan"), *[-0.5] * sampled),
        versions=(-1, *versions),
        turns=(TurnSpan(start=0, end=1 + sampled, parent=-1, advantage=advantage),),
        start_version=min(versions),
        end_version=max(versions),
        reward=1.0,
    )


async def publish(store: Store, version: int, step: int | None = None, parent: int | None = None) -> None:
    if parent is None and version > 0:
        parent = version - 1
    await store.publish_version(WeightVersion(version=version, step=version if step is None else step, parent=parent))


async def claim_train(store: Store, worker: str = "w", admission: Admission | None = None) -> Claim | None:
    return await store.claim(worker, splits=TRAIN, admission=admission)


async def must_claim(store: Store, worker: str = "w", admission: Admission | None = None) -> Claim:
    claim = await claim_train(store, worker, admission)
    assert claim is not None
    return claim


async def play(
    store: Store, claim: Claim, *, versions: Sequence[int] = (0,), trained: Sequence[int] | None = None
) -> bool:
    """Finish every open slot and the group; slots in ``trained`` (default all) get a row."""
    records = {kept.slot: kept for kept in claim.finished}
    for slot in range(claim.task.num_slots):
        if slot not in records:
            records[slot] = record(claim, slot)
            await store.append_turn(claim, turn(records[slot].id, version=versions[0]))
            await store.finish_record(claim, records[slot])
    slots = range(claim.task.num_slots) if trained is None else trained
    verdict = GroupVerdict(slots={slot: 1.0 if slot in slots else "zero advantage" for slot in records})
    return await store.finalize_group(claim, verdict, [row(claim, records[slot], versions=versions) for slot in slots])


async def play_next(store: Store, *, versions: Sequence[int] = (0,), admission: Admission | None = None) -> Claim:
    claim = await must_claim(store, admission=admission)
    assert await play(store, claim, versions=versions)
    return claim


async def take(store: Store, step: int, version: int | None = None, groups: int = 1, **rule: Any) -> Taken | None:
    return await store.take(
        TakeRule(step=step, version=step - 1 if version is None else version, num_groups=groups, **rule)
    )


async def must_take(store: Store, step: int, version: int | None = None, groups: int = 1, **rule: Any) -> Taken:
    taken = await take(store, step, version, groups, **rule)
    assert taken is not None
    return taken


def seqs(taken: Taken) -> list[int]:
    return [row.seq for row in taken.rows]


def worker(name: str, pid: int = 1, host: str = "here") -> Worker:
    return Worker(id=name, kind="sampler", host=host, pid=pid)
