"""Totals that every store backend keeps beside its documents: queue counts, pass rates, spending, first values."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from store_documents import (
    BACKENDS,
    Clock,
    Open,
    must_claim,
    must_take,
    play,
    play_next,
    publish,
    record,
    row,
    scenario,
    take,
    tasks,
    turn,
    worker,
)

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import PassRate, QueueCounts, Store
from agentrl.types import (
    Claim,
    GroupVerdict,
    InferenceService,
    RecordStatus,
    ResultStatus,
    Split,
    TaskStatus,
    ToolResult,
    WeightVersion,
)


@pytest.fixture(params=BACKENDS)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return BACKENDS[request.param](tmp_path)


# --- Queue -----------------------------------------------------------------------------------------------------------


@scenario
async def test_every_group_is_counted_where_it_is(open_backend: Open) -> None:
    store = await open_backend()
    assert await store.queue(Split.TRAIN) == QueueCounts()
    await store.add_tasks([*tasks(8), *tasks(2, split=Split.EVAL)])
    await publish(store, 0)
    claims = [await must_claim(store) for _ in range(6)]
    for claim in claims[:3]:
        await play(store, claim)
    await play(store, claims[3], trained=[])
    abandoned = GroupVerdict(slots={}, status=TaskStatus.ABANDONED, reason="too few valid records")
    await store.finalize_group(claims[4], abandoned, [])
    counts = QueueCounts(
        created=2, running=1, completed=4, abandoned={"too few valid records": 1}, empty=1, ready=3, fresh_taken=0
    )
    assert await store.queue(Split.TRAIN) == counts
    assert await store.queue(Split.EVAL) == QueueCounts(created=2)
    await must_take(store, 1)
    assert await store.queue(Split.TRAIN) == replace(counts, ready=2, taken=1, fresh_taken=1)
    await store.ack(1)
    assert await store.queue(Split.TRAIN) == replace(counts, ready=2, trained=1, fresh_taken=1)
    await publish(store, 1)
    taken = await must_take(store, 2)
    await store.drop([each.id for each in taken.rows[:1]], "too long")
    assert await store.queue(Split.TRAIN) == replace(counts, ready=1, taken=1, trained=1, fresh_taken=2)
    await store.drop([each.id for each in taken.rows], "too long")
    dropped = replace(counts, ready=1, trained=1, dropped={"too long": 1}, fresh_taken=1)
    assert await store.queue(Split.TRAIN) == dropped
    assert dropped.unfinished == 3
    await store.close()


@scenario
async def test_a_rewind_takes_counts_back(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    for _ in range(3):
        await play_next(store)
    for step in (1, 2, 3):
        await must_take(store, step)
        await publish(store, step)
    await store.ack(1)
    await store.rewind(2, 2)
    assert await store.queue(Split.TRAIN) == QueueCounts(completed=3, ready=1, trained=2, fresh_taken=2)
    await store.rewind(0, 0)
    assert await store.queue(Split.TRAIN) == QueueCounts(completed=3, ready=3)
    await store.close()


@scenario
async def test_a_group_pushed_again_is_counted_once_and_its_repetition_too(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    for version in range(10):
        await publish(store, version)
    await play_next(store, versions=[0])
    assert await take(store, 10, 9, drop_staleness=8) is None
    assert await store.queue(Split.TRAIN) == QueueCounts(created=1, pushed_again=1)
    await store.close()


@scenario
async def test_a_held_out_group_that_has_finished_is_empty(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1, split=Split.EVAL))
    claim = await store.claim("w", splits=[Split.EVAL])
    assert claim is not None
    await store.finalize_group(claim, GroupVerdict(slots={0: "evaluation"}), [])
    assert await store.queue(Split.EVAL) == QueueCounts(completed=1, empty=1)
    await store.close()


# --- Pass rates ------------------------------------------------------------------------------------------------------


async def play_scores(store: Store, claim: Claim, *scores: float | None) -> None:
    for slot, score in enumerate(scores):
        done = record(claim, slot, value=0.0 if score is None else score)
        if score is None:
            done = replace(done, status=RecordStatus.UNSCORED, scores=())
        await store.finish_record(claim, done)
    await store.finalize_group(claim, GroupVerdict(slots=dict.fromkeys(range(len(scores)), "x")), [])


@scenario
async def test_pass_rates_are_those_of_finished_training_groups_by_task_of_the_file(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(2), *tasks(2, epoch=1), *tasks(1, split=Split.EVAL)])
    assert await store.pass_rates() == {}
    await play_scores(store, await must_claim(store), 1.0, 0.0)
    await play_scores(store, await must_claim(store), None, None)
    expected = {
        "q0": PassRate(num_groups=1, num_scored=2, mean_score=0.5, last_score=0.5),
        "q1": PassRate(num_groups=1, num_scored=0, mean_score=None, last_score=None),
    }
    assert await store.pass_rates() == expected
    await play_scores(store, await must_claim(store), 1.0, None)
    held_out = await store.claim("w", splits=[Split.EVAL])
    assert held_out is not None
    await play_scores(store, held_out, 1.0, 1.0)
    expected["q0"] = PassRate(num_groups=2, num_scored=3, mean_score=2 / 3, last_score=1.0)
    assert await store.pass_rates() == expected
    await store.close()


@scenario
async def test_a_pass_rate_counts_the_attempt_that_counts(open_backend: Open) -> None:
    clock = Clock()
    store = await open_backend(clock=clock)
    await store.add_tasks(tasks(1))
    late = await must_claim(store, "late")
    clock.now += 60
    new = await must_claim(store, "new")
    with pytest.raises(LeaseLost):
        await store.finish_record(late, record(late, 0, attempt=0, value=1.0))
    await store.finish_record(new, record(new, 0, attempt=1, value=0.25))
    await store.finish_record(new, record(new, 1, value=0.75))
    await store.finalize_group(new, GroupVerdict(slots={0: "x", 1: "x"}), [])
    assert (await store.pass_rates())["q0"].mean_score == 0.5
    await store.close()


@scenario
async def test_a_group_that_is_played_again_counts_once_in_its_pass_rate(open_backend: Open) -> None:
    """A restart plays groups of a lineage that ended again, and must not change what is chosen next."""
    store = await open_backend()
    await store.add_tasks([*tasks(1), *tasks(1, epoch=1)])
    await publish(store, 0)
    await play_scores(store, await must_claim(store), 1.0, 1.0)
    await publish(store, 1)
    claim = await must_claim(store)
    finished = [record(claim, slot, value=value) for slot, value in enumerate((1.0, 0.5))]
    for each in finished:
        await store.finish_record(claim, each)
    verdict = GroupVerdict(slots={0: 1.0, 1: 1.0})
    await store.finalize_group(claim, verdict, [row(claim, each, versions=[1]) for each in finished])
    before = PassRate(num_groups=2, num_scored=4, mean_score=0.875, last_score=0.75)
    assert (await store.pass_rates())["q0"] == before
    await store.publish_version(WeightVersion(version=2, step=1, parent=0))
    assert (await store.rewind(1, 2))["groups_again"] == 1
    assert (await store.pass_rates())["q0"] == before
    await play_scores(store, await must_claim(store), 0.0, None)
    assert (await store.pass_rates())["q0"] == PassRate(num_groups=2, num_scored=3, mean_score=2 / 3, last_score=0.0)
    await store.close()


# --- Spending --------------------------------------------------------------------------------------------------------


@scenario
async def test_a_turn_is_spent_once_though_it_is_stored_twice(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    claim = await must_claim(store)

    def called(name: str, status: ResultStatus = ResultStatus.OK) -> ToolResult:
        return ToolResult(call_id="c", name=name, arguments={}, status=status, content="")

    results = (called("search"), called("search", ResultStatus.TIMEOUT), called("nonsense", ResultStatus.REJECTED))
    sent = replace(turn(record(claim, 0).id, size=5), tool_results=results)
    await store.append_turn(claim, sent)
    await store.append_turn(claim, sent)
    await store.append_turn(claim, turn(record(claim, 1).id))
    assert await store.spending() == {
        "calls": 2,
        "prompt_tokens": 8,
        "sampled_tokens": 8,
        "calls/tool:search": 2,
    }
    with pytest.raises(LeaseLost):
        await store.append_turn(replace(claim, claim_no=0), turn(record(claim, 1).id, 1))
    assert (await store.spending())["calls"] == 2
    await store.close()


@scenario
async def test_spending_adds_up_over_processes_and_restarts(open_backend: Open) -> None:
    stores = [await open_backend() for _ in range(3)]
    await asyncio.gather(*(store.spend({"money": 0.25, "calls": 1}) for store in stores for _ in range(4)))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(StoreError, match="finite and not negative"):
            await stores[0].spend({"money": wrong})
    for store in stores:
        await store.close()
    again = await open_backend()
    assert await again.spending() == {"money": 3.0, "calls": 12}
    await again.close()


# --- State and workers -----------------------------------------------------------------------------------------------


@scenario
async def test_of_several_writers_of_a_state_the_first_wins(open_backend: Open) -> None:
    stores = [await open_backend() for _ in range(4)]
    kept = await asyncio.gather(*(store.keep_state("plan", {"by": number}) for number, store in enumerate(stores)))
    assert len({str(each) for each in kept}) == 1
    assert await stores[0].get_state("plan") == kept[0]
    await stores[0].set_state("plan", None)
    assert await stores[1].keep_state("plan", 1) is None
    for store in stores:
        await store.close()


@scenario
async def test_a_worker_shows_how_long_ago_it_was_heard_of(open_backend: Open) -> None:
    clock = Clock()
    store = await open_backend(clock=clock)
    await store.heartbeat(worker("a"))
    clock.now += 12
    (found,) = await store.workers()
    assert (found.alive, found.age_seconds) == (True, 12.0)
    clock.now += 30
    (found,) = await store.workers()
    assert (found.alive, found.age_seconds) == (False, 42.0)
    await store.close()


# --- What goes on ----------------------------------------------------------------------------------------------------


@scenario
async def test_running_groups_say_whose_they_are_how_old_and_how_far(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(3), *tasks(1, split=Split.EVAL, slots=1)])
    await publish(store, 0)
    assert await store.running_groups() == []
    first, second = await must_claim(store), await must_claim(store)
    await store.append_turn(first, turn(f"{first.task.id}/0/0"))
    await store.finish_record(first, record(first, 0, 0))
    await store.append_turn(first, turn(f"{first.task.id}/1/0"))
    one, other = await store.running_groups()
    assert (one.task, one.split, one.owner, one.num_slots, one.num_done) == (first.task.id, "train", "w", 2, 1)
    assert (other.task, other.num_done) == (second.task.id, 0)
    assert 0 <= one.age_seconds < 30
    await play(store, first)
    await store.leave("w")
    assert [(group.task, group.owner) for group in await store.running_groups()] == [(second.task.id, "")]
    await store.close()


@scenario
async def test_a_service_says_when_it_was_registered_last(open_backend: Open) -> None:
    store = await open_backend()
    service = InferenceService(url="http://e", kind="slots", model="m", last_error="odd", running=2)
    await store.put_service(service)
    (found,) = await store.services()
    assert (found.running, found.last_error) == (2, "odd")
    assert 0 <= found.age_seconds < 30
    await store.put_service(found)
    (again,) = await store.find("service", url="http://e")
    assert again.beat >= found.beat > 0
    assert again == service
    await store.close()
