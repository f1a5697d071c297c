"""Groups that are trained several times: when a step takes them again, how sampling keeps pace, what a rewind finds."""

from __future__ import annotations

from dataclasses import replace
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
    row,
    scenario,
    seqs,
    take,
    tasks,
)

from agentrl.store import Admission, QueueCounts, Store
from agentrl.types import GroupVerdict, RowStatus, Split

TWICE = {"max_trained_count": 2}


@pytest.fixture(params=BACKENDS)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return BACKENDS[request.param](tmp_path)


async def begin(store: Store, *, groups: int, played: int) -> None:
    await store.add_tasks(tasks(groups))
    await publish(store, 0)
    for _ in range(played):
        await play_next(store)


async def train(store: Store, step: int, groups: int = 1, **rule: Any) -> list[int]:
    """One step, acknowledged and published; the ``seq`` of the groups it took."""
    taken = await must_take(store, step, groups=groups, **rule)
    await store.ack(step)
    await publish(store, step)
    return sorted(set(seqs(taken)))


@pytest.mark.parametrize(
    ("uses", "interval", "order"),
    [
        (1, 1, [0, 1, 2, 3]),
        (2, 1, [0, 0, 1, 1, 2, 2, 3, 3]),
        (2, 2, [0, 1, 0, 1, 2, 3, 2, 3]),
        (3, 2, [0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3]),
    ],
)
@scenario
async def test_a_group_is_taken_again_after_its_interval_and_lowest_seq_goes_first(
    open_backend: Open, uses: int, interval: int, order: list[int]
) -> None:
    store = await open_backend()
    await begin(store, groups=4, played=4)
    await store.end_stream(Split.TRAIN)
    rule = {"max_trained_count": uses, "retrained_interval": interval, "drop_staleness": 20}
    assert [seq for step in range(len(order)) for seq in await train(store, step + 1, **rule)] == order
    end = await must_take(store, len(order) + 1, **rule)
    assert (end.rows, end.end_of_stream) == ((), True)
    assert {each.trained_count for each in await store.find("row", status="trained")} == {uses}
    await store.close()


@scenario
async def test_the_end_is_known_only_when_no_use_is_left(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=1, played=1)
    await store.end_stream(Split.TRAIN)
    assert not (await must_take(store, 1, **TWICE)).end_of_stream
    assert (await must_take(store, 1)).end_of_stream
    await store.ack(1)
    await publish(store, 1)
    assert (await must_take(store, 2, **TWICE)).end_of_stream
    await store.close()


@scenario
async def test_an_interval_that_no_step_could_end_is_not_waited_for(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=2, played=1)
    rule = {"max_trained_count": 2, "retrained_interval": 5}
    assert await train(store, 1, **rule) == [0]
    assert await take(store, 2, **rule) is None
    await play_next(store)
    assert await train(store, 2, **rule) == [1]
    assert await take(store, 3, **rule) is None
    await store.end_stream(Split.TRAIN)
    assert [await train(store, step, **rule) for step in (3, 4)] == [[0], [1]]
    await store.close()


@scenario
async def test_a_step_takes_fresh_groups_and_trained_ones_together(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=3, played=2)
    assert await train(store, 1, groups=2, **TWICE) == [0, 1]
    await store.drop([each.id for each in await store.find("row", seq=1)], "of a trained row nothing is taken back")
    await play_next(store, versions=[1])
    assert await train(store, 2, groups=3, **TWICE) == [0, 1, 2]
    assert await store.queue(Split.TRAIN) == QueueCounts(completed=3, trained=3, fresh_taken=3)
    await store.close()


@scenario
async def test_in_order_a_lower_unfinished_group_holds_back_repetitions_too(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=2, played=0)
    late, early = await must_claim(store), await must_claim(store)
    await play(store, early)
    assert await train(store, 1, **TWICE) == [1]
    assert await take(store, 2, in_order=True, **TWICE) is None
    await play(store, late)
    assert await train(store, 2, in_order=True, **TWICE) == [0]
    await store.close()


# --- Admission -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("uses", "interval", "fresh"),
    [(1, 1, [2, 3, 4, 5, 6, 7]), (2, 1, [1, 2, 2, 3, 3, 4]), (2, 2, [2, 2, 2, 3, 4, 4]), (3, 1, [1, 1, 2, 2, 2, 3])],
)
@scenario
async def test_sampling_runs_ahead_by_max_staleness_counted_in_steps_that_train_fresh_groups(
    open_backend: Open, uses: int, interval: int, fresh: list[int]
) -> None:
    """The groups admitted after each publication: those that steps up to the next but one take for the first time."""
    store = await open_backend()
    await store.add_tasks(tasks(10))
    pace = Admission(groups_per_step=1, max_staleness=1, max_trained_count=uses, retrained_interval=interval)
    admitted, counts = 0, []
    for version in range(6):
        await publish(store, version)
        while await claim_train(store, admission=pace) is not None:
            admitted += 1
        counts.append(admitted)
    assert counts == fresh
    await store.close()


@scenario
async def test_where_stragglers_have_moved_uses_the_step_asks_for_the_fresh_groups_it_lacks(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=9, played=0)
    rule = {"max_trained_count": 2, "retrained_interval": 3, "drop_staleness": 20}
    pace = Admission(groups_per_step=1, max_staleness=1, max_trained_count=2, retrained_interval=3)
    await play_next(store, admission=pace)
    assert await train(store, 1, **rule) == [0]
    for step in (2, 3):
        await play_next(store, admission=pace)
        await train(store, step, **rule)
    assert await claim_train(store, admission=pace) is None
    await store.drop([each.id for each in await store.find("row", seq=0)], "x")
    taken = await must_take(store, 4, **rule)
    assert seqs(taken) == [0, 0]
    await store.drop([each.id for each in taken.rows], "nothing to train")
    assert await take(store, 4, **rule) is None
    assert (await must_claim(store, admission=pace)).task.seq == 3
    assert await claim_train(store, admission=pace) is None
    await store.rewind(3, 3)
    assert await claim_train(store, admission=pace) is None
    await store.close()


# --- Age and drops ---------------------------------------------------------------------------------------------------


@scenario
async def test_a_row_too_old_for_another_use_stays_trained_and_is_counted(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=4, played=1)
    rule = {"max_trained_count": 3, "retrained_interval": 2, "drop_staleness": 2}
    assert await train(store, 1, **rule) == [0]
    await play_next(store, versions=[1])
    assert await train(store, 2, **rule) == [1]
    assert await train(store, 3, **rule) == [0]
    await play_next(store, versions=[3])
    taken = await must_take(store, 4, **rule)
    assert (seqs(taken), taken.dropped) == ([1, 1], {"trained_stale": 2})
    assert [state[1:] for state in await store.row_states("run/train/0/q0")] == [(RowStatus.TRAINED, 3, "stale")] * 2
    assert await store.queue(Split.TRAIN) == QueueCounts(
        created=1, completed=3, ready=1, taken=1, trained=1, fresh_taken=2
    )
    await store.rewind(3, 3)
    assert [state[1:] for state in await store.row_states("run/train/0/q0")] == [(RowStatus.TRAINED, 3, "")] * 2
    await store.close()


@scenario
async def test_a_row_dropped_at_its_second_use_keeps_its_first(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=2, played=1)
    assert await train(store, 1, **TWICE) == [0]
    taken = await must_take(store, 2, **TWICE)
    assert await store.drop([taken.rows[0].id], "too long") == 1
    await store.ack(2)
    assert [state[1:] for state in await store.row_states()] == [
        (RowStatus.TRAINED, 1, "too long"),
        (RowStatus.TRAINED, 2, ""),
    ]
    assert [each.trained_count for each in await store.find("row")] == [1, 2]
    assert await store.count("task", status="completed") == 1
    await store.close()


# --- Rewind ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_rewind_takes_back_the_uses_of_later_steps_and_no_others(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=3, played=2)
    rule = {"max_trained_count": 3, "retrained_interval": 2}
    for step, seq in ((1, 0), (2, 1), (3, 0)):
        assert await train(store, step, **rule) == [seq]
    assert seqs(await must_take(store, 4, **rule)) == [1, 1]
    assert await store.rewind(2, 2) == {"trained": 0, "ready": 4, "dropped": 0, "groups_again": 0}
    assert [(each.seq, each.trained_count) for each in await store.find("row")] == [(0, 1), (0, 1), (1, 1), (1, 1)]
    assert [state[2] for state in await store.row_states()] == [1, 1, 2, 2]
    assert await store.queue(Split.TRAIN) == QueueCounts(created=1, completed=2, trained=2, fresh_taken=2)
    assert [await train(store, step, **rule) for step in (3, 4)] == [[0], [1]]
    assert await store.rewind(0, 0) == {"trained": 0, "ready": 4, "dropped": 0, "groups_again": 0}
    assert await store.queue(Split.TRAIN) == QueueCounts(created=1, completed=2, ready=2)
    assert [state[1:] for state in await store.row_states()] == [(RowStatus.READY, None, "")] * 4
    await store.close()


@scenario
async def test_a_second_use_whose_step_was_saved_counts_and_one_that_was_not_is_repeated(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=1, played=1)
    thrice = {"max_trained_count": 3}
    assert await train(store, 1, **thrice) == [0]
    await must_take(store, 2, **thrice)
    await publish(store, 2)
    assert (await store.rewind(2, 2))["trained"] == 2
    assert {each.trained_count for each in await store.find("row")} == {2}
    await must_take(store, 3, **thrice)
    assert (await store.rewind(2, 2))["ready"] == 2
    assert {each.trained_count for each in await store.find("row")} == {2}
    assert await train(store, 3, **thrice) == [0]
    await store.close()


@scenario
async def test_partly_stale_groups_are_trained_again_with_what_is_left(open_backend: Open) -> None:
    store = await open_backend()
    await begin(store, groups=1, played=0)
    for version in (1, 2):
        await publish(store, version)
    claim = await must_claim(store)
    for slot in (0, 1):
        await store.finish_record(claim, record(claim, slot))
    rows = [row(claim, record(claim, slot), versions=[version]) for slot, version in ((0, 1), (1, 2))]
    await store.finalize_group(claim, GroupVerdict(slots={0: 1.0, 1: -1.0}), rows)
    await store.end_stream(Split.TRAIN)
    rule = {"max_trained_count": 3, "drop_staleness": 1}
    assert [each.slot for each in (await must_take(store, 3, **rule)).rows] == [0, 1]
    await store.ack(3)
    await publish(store, 3)
    second = await must_take(store, 4, **rule)
    assert ([each.slot for each in second.rows], second.dropped) == ([1], {"trained_stale": 1})
    assert second.end_of_stream
    assert [replace(each, trained_count=1) for each in second.rows] == list(second.rows)
    await store.close()
