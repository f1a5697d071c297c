"""Groups that are set aside: nobody claims them, they end a stream, and they come back under their old ``seq``."""

from pathlib import Path
from typing import Any

import pytest
from store_documents import (
    BACKENDS,
    ONE_GROUP,
    Open,
    claim_train,
    must_claim,
    must_take,
    play,
    play_next,
    publish,
    scenario,
    seqs,
    take,
    tasks,
)

from agentrl.store import Store
from agentrl.types import Split, TaskStatus


@pytest.fixture(params=BACKENDS)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return BACKENDS[request.param](tmp_path)


async def statuses(store: Store) -> list[tuple[TaskStatus, str]]:
    return [(task.status, task.reason) for task in await store.find("task", split=Split.TRAIN)]


@scenario
async def test_only_groups_that_nobody_has_begun_are_set_aside(open_backend: Open) -> None:
    store: Any = await open_backend()
    await store.add_tasks([*tasks(4), *tasks(2, split=Split.EVAL)])
    await publish(store, 0)
    await play_next(store)
    claim = await must_claim(store)
    assert await store.set_aside(Split.TRAIN, "budget") == 2
    assert await statuses(store) == [
        (TaskStatus.COMPLETED, ""),
        (TaskStatus.RUNNING, ""),
        (TaskStatus.ABANDONED, "budget"),
        (TaskStatus.ABANDONED, "budget"),
    ]
    counts = await store.queue(Split.TRAIN)
    assert (counts.created, counts.running, dict(counts.abandoned)) == (0, 1, {"budget": 2})
    assert (await store.queue(Split.EVAL)).created == 2
    assert await claim_train(store) is None
    await play(store, claim)
    assert await store.set_aside(Split.TRAIN, "budget") == 0


@scenario
async def test_the_stream_ends_with_the_groups_under_way(open_backend: Open) -> None:
    store: Any = await open_backend()
    await store.add_tasks(tasks(4))
    await publish(store, 0)
    await store.end_stream(Split.TRAIN)
    claim = await must_claim(store)
    await store.set_aside(Split.TRAIN, "budget")
    assert await take(store, 1, groups=2) is None
    await play(store, claim)
    taken = await must_take(store, 1, groups=2)
    assert seqs(taken) == [0, 0]
    assert taken.end_of_stream


@scenario
async def test_what_is_taken_back_is_played_under_its_old_seq_and_admitted_as_before(open_backend: Open) -> None:
    store: Any = await open_backend()
    await store.add_tasks(tasks(5))
    await publish(store, 0)
    await play_next(store)
    await store.set_aside(Split.TRAIN, "budget")
    assert await store.take_back(Split.TRAIN, "another") == 0
    assert await store.take_back(Split.EVAL, "budget") == 0
    assert await store.take_back(Split.TRAIN, "budget") == 4
    claim = await must_claim(store, admission=ONE_GROUP)
    assert claim.task.seq == 1
    assert await claim_train(store, admission=ONE_GROUP) is None
    counts = await store.queue(Split.TRAIN)
    assert (counts.created, sum(counts.abandoned.values())) == (3, 0)


@scenario
async def test_another_run_of_the_store_is_left_alone(open_backend: Open) -> None:
    mine, other = await open_backend(run="mine"), await open_backend(run="other")
    for store in (mine, other):
        await store.add_tasks(tasks(2))
    await mine.set_aside(Split.TRAIN, "budget")
    assert (await other.queue(Split.TRAIN)).created == 2
    await other.set_aside(Split.TRAIN, "budget")
    await mine.take_back(Split.TRAIN, "budget")
    assert (await other.queue(Split.TRAIN)).abandoned == {"budget": 2}
