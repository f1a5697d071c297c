"""Groups that end with nothing to train: how many a step replaces, and what becomes of steps that stay short."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from store_documents import (
    BACKENDS,
    Open,
    claim_train,
    must_claim,
    must_take,
    play,
    play_next,
    publish,
    record,
    scenario,
    seqs,
    take,
    tasks,
)

from agentrl.store import Admission, QueueCounts, Store, Taken
from agentrl.types import Claim, GroupVerdict, Split, TaskStatus

PAIRS = Admission(groups_per_step=2, max_staleness=0)


@pytest.fixture(params=BACKENDS)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return BACKENDS[request.param](tmp_path)


async def begin(store: Store, groups: int) -> None:
    await store.add_tasks(tasks(groups))
    await publish(store, 0)


async def lose(store: Store, claim: Claim) -> None:
    """The group's scores are all equal."""
    for slot in range(claim.task.num_slots):
        await store.finish_record(claim, record(claim, slot))
    verdict = GroupVerdict(slots={0: "no_signal", 1: "no_signal"}, status=TaskStatus.ABANDONED, reason="no_signal")
    await store.finalize_group(claim, verdict, [])


async def play_out(store: Store, outcome: str) -> None:
    """One group per letter: ``s`` has a signal, ``n`` has none, ``e`` finished without a row."""
    for letter in outcome:
        claim = await must_claim(store)
        if letter == "n":
            await lose(store, claim)
        else:
            await play(store, claim, trained=None if letter == "s" else ())


async def pair(store: Store, step: int, limit: int | None, **rule: Any) -> Taken | None:
    return await take(store, step, groups=2, max_refills=limit, **rule)


@pytest.mark.parametrize(
    ("played", "limit", "groups", "lost", "short"),
    [
        ("s", 1, None, 0, 0),
        ("sn", 1, None, 0, 0),
        ("sns", 1, 2, 1, 0),
        ("snn", 1, 1, 2, 1),
        ("sn", 0, 1, 1, 1),
        ("ss", 0, 2, 0, 0),
        ("nnes", 2, 1, 3, 1),
        ("nnes", 3, None, 0, 0),
        ("nnnnnnnns", None, None, 0, 0),
    ],
)
@scenario
async def test_a_step_is_taken_smaller_once_its_refills_are_used_up(
    open_backend: Open, played: str, limit: int | None, groups: int | None, lost: int, short: int
) -> None:
    store = await open_backend()
    await begin(store, 12)
    await play_out(store, played)
    taken = await pair(store, 1, limit)
    assert (taken and taken.num_groups) == groups
    if taken is not None:
        assert (taken.lost, taken.short) == (lost, short)
    assert (await store.queue(Split.TRAIN)).short == short
    await store.close()


@scenario
async def test_losses_are_counted_to_one_step_and_those_beyond_its_refills_to_the_next(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, 20)
    await play_out(store, "snnnn")
    taken = await must_take(store, 1, groups=2, max_refills=1)
    assert (taken.num_groups, taken.lost, taken.short) == (1, 2, 1)
    await store.ack(1)
    await publish(store, 1)
    counts = await store.queue(Split.TRAIN)
    assert (counts.charged, counts.short, counts.lost) == (2, 1, 2)
    assert await pair(store, 2, 1) is None
    await play_out(store, "s")
    second = await must_take(store, 2, groups=2, max_refills=1)
    assert (second.num_groups, second.lost, second.short) == (1, 2, 1)
    await store.close()


@scenario
async def test_a_step_that_finds_no_signal_at_all_is_left_out_and_training_goes_on(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, 20)
    await play_out(store, "nnn")
    assert await pair(store, 1, 1) is None
    counts = await store.queue(Split.TRAIN)
    assert (counts.charged, counts.short, counts.left_out, counts.lost) == (3, 0, 2, 0)
    assert await pair(store, 1, 1) is None
    await play_out(store, "ss")
    taken = await must_take(store, 1, groups=2, max_refills=1)
    assert (taken.num_groups, taken.lost, taken.short, taken.left_out) == (2, 3, 0, 2)
    await store.close()


@scenario
async def test_admission_keeps_its_distance_behind_a_smaller_step(open_backend: Open) -> None:
    """One group of two is trained, so the groups of the next step begin one place later, not two."""
    store = await open_backend()
    await begin(store, 20)
    for _ in range(2):
        await lose(store, await must_claim(store, admission=PAIRS))
    await play_next(store, admission=PAIRS)
    ahead = await must_claim(store, admission=PAIRS)
    assert ahead.task.seq == 3
    assert await claim_train(store, admission=PAIRS) is None
    taken = await must_take(store, 1, groups=2, max_refills=1)
    assert taken.num_groups == 1
    await store.ack(1)
    await publish(store, 1)
    assert (await must_claim(store, admission=PAIRS)).task.seq == 4
    assert await claim_train(store, admission=PAIRS) is None, "it would run ahead by the place that stayed free"
    await store.close()


@scenario
async def test_admission_goes_on_behind_a_step_that_was_left_out(open_backend: Open) -> None:
    """No version is published for it, so its groups are only losses."""
    store = await open_backend()
    await begin(store, 20)
    for _ in range(3):
        await lose(store, await must_claim(store, admission=PAIRS))
    assert await pair(store, 1, 1) is None
    for seq in (3, 4):
        assert (await must_claim(store, admission=PAIRS)).task.seq == seq
    assert await claim_train(store, admission=PAIRS) is None
    await store.close()


@scenario
async def test_the_end_of_the_stream_is_a_smaller_step_that_counts_as_no_shortage(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, 2)
    await play_out(store, "sn")
    assert await pair(store, 1, 3) is None
    await store.end_stream(Split.TRAIN)
    taken = await must_take(store, 1, groups=2, max_refills=3)
    assert (taken.num_groups, taken.lost, taken.short) == (1, 1, 0)
    await store.close()


@scenario
async def test_a_rewind_gives_back_what_later_steps_were_charged(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, 20)
    for step, played in enumerate(("snn", "ns", "n"), 1):
        await play_out(store, played)
        if step < 3:
            await must_take(store, step, groups=2, max_refills=step % 2)
            await store.ack(step)
            await publish(store, step)
    before = await store.queue(Split.TRAIN)
    assert (before.charged, before.short, before.lost) == (3, 2, 1)
    await pair(store, 3, 0)
    await play_out(store, "n")
    await pair(store, 3, 0)
    assert (await store.queue(Split.TRAIN)).left_out == 2
    await store.rewind(1, 1)
    after = await store.queue(Split.TRAIN)
    assert (after.charged, after.short, after.left_out, after.lost) == (2, 1, 0, 3)
    again = await must_take(store, 2, groups=2, max_refills=0)
    assert (again.num_groups, seqs(again)) == (1, [4, 4])
    await store.close()


@scenario
async def test_without_a_limit_nothing_is_charged(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, 6)
    await play_out(store, "nsns")
    taken = await must_take(store, 1, groups=2)
    assert (taken.lost, taken.short) == (0, 0)
    assert await store.queue(Split.TRAIN) == QueueCounts(
        created=2, completed=2, taken=2, abandoned={"no_signal": 2}, fresh_taken=2
    )
    await store.close()
