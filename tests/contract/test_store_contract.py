"""What every store backend does, whatever holds the documents."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from store_documents import (
    BACKENDS,
    ONE_GROUP,
    TRAIN,
    Clock,
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
    turn,
    worker,
)

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import Admission, Store, open_store
from agentrl.types import (
    CallStatus,
    Flag,
    GroupVerdict,
    InferenceService,
    Record,
    RecordStatus,
    Reply,
    ResultStatus,
    RowStatus,
    Score,
    Split,
    Task,
    TaskStatus,
    ToolCall,
    ToolResult,
    WeightVersion,
)


@pytest.fixture(params=BACKENDS)
def open_backend(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# --- Tasks -----------------------------------------------------------------------------------------------------------


@scenario
async def test_tasks_are_numbered_in_push_order_within_their_split(open_backend: Open) -> None:
    store = await open_backend()
    assert await store.add_tasks([*tasks(2), *tasks(3, split=Split.EVAL)]) == 5
    assert await store.add_tasks(tasks(4)) == 2
    found = await store.find("task", split=Split.TRAIN)
    assert [(task.task_id, task.seq) for task in found] == [("q0", 0), ("q1", 1), ("q2", 2), ("q3", 3)]
    assert [task.seq for task in await store.find("task", split="eval")] == [0, 1, 2]
    assert found[0].id == "run/train/0/q0"
    await store.close()


@scenario
async def test_a_task_comes_back_as_it_was_pushed(open_backend: Open) -> None:
    store = await open_backend()
    task = Task(
        task_id="odd/ id\n",
        query="wie groß? 数",
        answer=["a", {"b": 1.5}],
        system_prompt="be brief",
        messages=({"role": "user", "content": "hi"},),
        tools=("search",),
        setup=({"tool": "reset"},),
        metadata={"level": 2},
        num_slots=4,
        epoch=3,
    )
    await store.add_tasks([task])
    assert await store.find("task") == [replace(task, run="run", seq=0)]
    await store.close()


@scenario
async def test_values_no_backend_can_hold_are_normalised(open_backend: Open) -> None:
    store = await open_backend()
    answer = {2**63: 2**64, None: math.nan, True: [math.inf, -math.inf], 1.5: "\ud800", "t": (1, {2})}
    await store.add_tasks([Task(task_id="x\udfff", query="q", answer=answer, metadata={"int": 2**63 - 1})])
    (task,) = await store.find("task")
    assert task.answer == {
        str(2**63): str(2**64),
        "null": "NaN",
        "true": ["Infinity", "-Infinity"],
        "1.5": "\\ud800",
        "t": [1, [2]],
    }
    assert task.task_id == "x\\udfff"
    assert task.metadata == {"int": 2**63 - 1}
    with pytest.raises(StoreError, match=r"answer is a PosixPath"):
        await store.add_tasks([Task(task_id="y", query="q", answer=Path("a"))])
    with pytest.raises(StoreError, match="16,777,216"):
        await store.add_tasks([Task(task_id="z", query="q" * 17_000_000)])
    await store.close()


@scenario
async def test_a_task_of_another_run_is_refused(open_backend: Open) -> None:
    store = await open_backend()
    with pytest.raises(StoreError, match="run 'other'"):
        await store.add_tasks([Task(task_id="x", query="q", run="other")])
    await store.close()


@scenario
async def test_eight_pushers_push_each_epoch_once(open_backend: Open) -> None:
    stores = [await open_backend() for _ in range(8)]
    epochs = [task for epoch in range(3) for task in tasks(40, epoch=epoch)]
    added = await asyncio.gather(*(store.add_tasks(epochs) for store in stores))
    assert sum(added) == 120
    assert [task.seq for task in await stores[0].find("task")] == list(range(120))
    for store in stores:
        await store.close()


@scenario
async def test_a_new_run_in_a_used_store_touches_nothing_old(open_backend: Open, clock: Clock) -> None:
    old = await open_backend("a", clock=clock)
    await old.add_tasks(tasks(3))
    await publish(old, 0)
    await play_next(old)
    await must_claim(old, "old-worker")
    kinds = ("task", "record", "turn", "version", "worker")
    before = [
        *[await old.find(kind) for kind in kinds],
        *(await old.row_states(), await old.queue(Split.TRAIN), await old.pass_rates(), await old.spending()),
    ]
    new = await open_backend("a/train")
    assert await claim_train(new) is None
    await new.add_tasks([*tasks(2), Task(task_id="q0", query="q", split=Split.TRAIN, epoch=0)])
    await publish(new, 0)
    await play_next(new)
    await must_take(new, 1)
    await new.ack(1)
    await new.rewind(0, 0)
    await new.leave("old-worker")
    await new.end_stream(Split.TRAIN)
    assert before == [
        *[await old.find(kind) for kind in kinds],
        *(await old.row_states(), await old.queue(Split.TRAIN), await old.pass_rates(), await old.spending()),
    ]
    assert len((await must_take(old, 1)).rows) == 2
    await old.close()
    await new.close()


# --- Admission -------------------------------------------------------------------------------------------------------


@scenario
async def test_no_training_group_starts_before_a_version_is_published(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(1), *tasks(1, split=Split.EVAL)])
    assert await claim_train(store, admission=ONE_GROUP) is None
    claim = await store.claim("w", splits=[Split.EVAL, Split.TRAIN], admission=ONE_GROUP)
    assert claim is not None
    assert claim.task.split is Split.EVAL
    await publish(store, 0)
    assert await claim_train(store, admission=ONE_GROUP) is not None
    await store.close()


@scenario
async def test_admission_follows_its_formula(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(40))
    rule = Admission(groups_per_step=3, max_staleness=1)
    await publish(store, 0)
    claims = [await must_claim(store, admission=rule) for _ in range(6)]
    assert await claim_train(store, admission=rule) is None
    assert (await must_claim(store, admission=replace(rule, max_staleness=2))).task.seq == 6
    await store.finalize_group(claims[0], GroupVerdict(slots={}, status=TaskStatus.ABANDONED, reason="x"), [])
    await play(store, claims[1], trained=[])
    assert (await must_claim(store, admission=rule)).task.seq == 7
    assert await claim_train(store, admission=rule) is None
    await publish(store, 1)
    assert [(await must_claim(store, admission=rule)).task.seq for _ in range(3)] == [8, 9, 10]
    assert await claim_train(store, admission=rule) is None
    await store.close()


@scenario
async def test_only_a_group_whose_rows_are_all_dropped_makes_room(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(4))
    await publish(store, 0)
    rule = Admission(groups_per_step=1, max_staleness=0)
    claim = await play_next(store, admission=rule)
    assert await store.drop([f"{claim.task.id}/0/0"], "too long") == 1
    assert await claim_train(store, admission=rule) is None
    assert await store.drop([f"{claim.task.id}/1/0", f"{claim.task.id}/0/0", "no such row"], "too long") == 1
    assert await claim_train(store, admission=rule) is not None
    await store.close()


@scenario
async def test_abandoned_held_out_tasks_make_no_room_for_training(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(3), *tasks(3, split=Split.EVAL)])
    await publish(store, 0)
    rule = Admission(groups_per_step=1, max_staleness=0)
    for _ in range(3):
        claim = await store.claim("w", splits=[Split.EVAL], admission=rule)
        await store.finalize_group(claim, GroupVerdict(slots={}, status=TaskStatus.ABANDONED), [])
    assert await claim_train(store, admission=rule) is not None
    assert await claim_train(store, admission=rule) is None
    await store.close()


@scenario
async def test_splits_are_claimed_in_the_order_given_and_lowest_seq_first(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(3), *tasks(2, split=Split.TEST)])
    await publish(store, 0)
    order = [await store.claim("w", splits=[Split.TEST, Split.TRAIN], admission=ONE_GROUP) for _ in range(5)]
    assert [claim and (claim.task.split.value, claim.task.seq) for claim in order] == [
        ("test", 0),
        ("test", 1),
        ("train", 0),
        ("train", 1),
        None,
    ]
    await store.close()


# --- Claims, leases, attempts ----------------------------------------------------------------------------------------


@scenario
async def test_each_group_is_claimed_by_one_worker(open_backend: Open) -> None:
    stores = [await open_backend() for _ in range(4)]
    await stores[0].add_tasks(tasks(40))

    async def drain(number: int) -> list[str]:
        mine = []
        while (claim := await claim_train(stores[number % 4], f"w{number}")) is not None:
            mine.append(claim.task.id)
        return mine

    claimed = [name for mine in await asyncio.gather(*(drain(number) for number in range(8))) for name in mine]
    assert len(claimed) == len(set(claimed)) == 40
    for store in stores:
        await store.close()


@scenario
async def test_a_lease_lasts_as_long_as_its_workers_heartbeat(open_backend: Open, clock: Clock) -> None:
    store = await open_backend(clock=clock)
    await store.add_tasks(tasks(1))
    first = await must_claim(store, "a")
    await store.heartbeat(worker("a"))
    for _ in range(5):
        clock.now += 29
        assert await claim_train(store, "b") is None
        await store.heartbeat(worker("a"))
    assert [each.alive for each in await store.workers() if each.id == "a"] == [True]
    clock.now += 31
    assert [each.alive for each in await store.workers() if each.id == "a"] == [False]
    second = await must_claim(store, "b")
    assert second.claim_no == first.claim_no + 1
    await store.close()


@scenario
async def test_a_clock_set_back_does_not_make_a_lease_eternal(open_backend: Open, clock: Clock) -> None:
    store = await open_backend(clock=clock)
    await store.add_tasks(tasks(1))
    await must_claim(store, "a")
    clock.now -= 3600
    assert await claim_train(store, "b") is not None
    await store.close()


@scenario
async def test_a_late_owners_writes_are_refused_and_its_records_kept_as_expired(
    open_backend: Open, clock: Clock
) -> None:
    store = await open_backend(clock=clock)
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    late = await must_claim(store, "late")
    await store.append_turn(late, turn(record(late, 0).id))
    clock.now += 60
    new = await must_claim(store, "new")
    assert new.next_attempt == {0: 1, 1: 0}
    with pytest.raises(LeaseLost, match="claim 1 of run/train/0/q0 is over; the group is now running, claim 2 of new"):
        await store.append_turn(late, turn(record(late, 0).id, 1))
    for slot in (0, 1):
        with pytest.raises(LeaseLost):
            await store.finish_record(late, record(late, slot, value=0.25))
    with pytest.raises(LeaseLost):
        await store.finalize_group(late, GroupVerdict(slots={0: 1.0}), [])
    with pytest.raises(LeaseLost):
        await store.release(late)
    assert await play(store, new)
    expired = await store.find("record", status="expired")
    assert [(each.id, each.score, each.outcome) for each in expired] == [
        ("run/train/0/q0/0/0", 0.25, "answered"),
        ("run/train/0/q0/1/0", 0.25, "answered"),
    ]
    with pytest.raises(LeaseLost):
        await store.finish_record(late, record(late, 1, value=0.75))
    assert [(each.id, each.score) for each in await store.find("record", status="scored")] == [
        ("run/train/0/q0/0/1", 1.0),
        ("run/train/0/q0/1/0", 1.0),
    ]
    assert [each.record for each in (await must_take(store, 1)).rows] == ["run/train/0/q0/0/1", "run/train/0/q0/1/0"]
    await store.close()


@scenario
async def test_the_next_owner_runs_only_slots_without_a_terminal_record(open_backend: Open, clock: Clock) -> None:
    store = await open_backend(clock=clock)
    await store.add_tasks(tasks(1, slots=3))
    first = await must_claim(store, "a")
    await store.finish_record(first, record(first, 1))
    await store.append_turn(first, turn(record(first, 2).id))
    clock.now += 60
    second = await must_claim(store, "b")
    assert [(kept.slot, kept.status) for kept in second.finished] == [(1, RecordStatus.SCORED)]
    assert second.next_attempt == {0: 0, 1: 1, 2: 1}
    assert await play(store, second)
    await store.close()


@scenario
async def test_a_slot_that_lost_every_attempt_is_failed(open_backend: Open, clock: Clock) -> None:
    store = await open_backend(clock=clock, max_attempts=3)
    await store.add_tasks(tasks(1))
    for attempt in range(3):
        claim = await must_claim(store, f"w{attempt}")
        await store.append_turn(claim, turn(record(claim, 0).id))
        await store.finish_record(claim, record(claim, 1))
        clock.now += 60
    claim = await must_claim(store, "last")
    assert [(kept.slot, kept.attempt, kept.status) for kept in claim.finished] == [
        (0, 2, RecordStatus.FAILED),
        (1, 2, RecordStatus.SCORED),
    ]
    assert claim.finished[0].reason == "no attempt of 3 finished"
    await store.close()


@scenario
async def test_a_group_that_no_owner_survives_is_abandoned_as_poison(open_backend: Open, clock: Clock) -> None:
    store = await open_backend(clock=clock, max_attempts=3)
    await store.add_tasks(tasks(2))
    await publish(store, 0)
    pace = Admission(groups_per_step=1, max_staleness=0)
    for number in range(3):
        claim = await must_claim(store, f"w{number}", pace)
        assert claim.task.seq == 0
        await store.append_turn(claim, turn(record(claim, 0).id))
        clock.now += 60
    assert (await must_claim(store, "next", pace)).task.seq == 1
    (poisoned,) = await store.find("task", status=TaskStatus.ABANDONED)
    assert (poisoned.seq, poisoned.reason) == (0, "poison")
    assert await store.count("record", status="running") == 0
    await store.close()


@scenario
async def test_what_the_last_owner_of_a_poisoned_group_still_sends_is_refused_and_kept_as_expired(
    open_backend: Open, clock: Clock
) -> None:
    store = await open_backend(clock=clock, max_attempts=2)
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    for name in ("first", "last"):
        late = await must_claim(store, name)
        await store.append_turn(late, turn(record(late, 0).id))
        clock.now += 60
    assert await claim_train(store, "next") is None
    with pytest.raises(LeaseLost, match="the group is now abandoned, claim 2"):
        await store.append_turn(late, turn(record(late, 0).id, 1))
    for slot in (0, 1):
        with pytest.raises(LeaseLost):
            await store.finish_record(late, record(late, slot, value=0.25))
    with pytest.raises(LeaseLost):
        await store.finalize_group(late, GroupVerdict(slots={0: 1.0}), [row(late, record(late, 0))])
    assert [(each.id, each.status, each.score, each.reason) for each in await store.find("record")] == [
        ("run/train/0/q0/0/0", "expired", None, "lease lost"),
        ("run/train/0/q0/0/1", "expired", 0.25, "lease lost before it was scored"),
        ("run/train/0/q0/1/0", "expired", 0.25, "lease lost before it was scored"),
    ]
    (task,) = await store.find("task")
    assert (task.status, task.reason, await store.count("row")) == (TaskStatus.ABANDONED, "poison", 0)
    await store.close()


@scenario
async def test_a_slot_that_was_judged_without_a_late_result_keeps_its_judgement_and_the_result(
    open_backend: Open, clock: Clock
) -> None:
    store = await open_backend(clock=clock, max_attempts=1)
    await store.add_tasks(tasks(1))
    late = await must_claim(store, "late")
    await store.append_turn(late, turn(record(late, 0).id))
    await store.finish_record(late, record(late, 1))
    clock.now += 60
    new = await must_claim(store, "new")
    assert [kept.status for kept in new.finished] == [RecordStatus.FAILED, RecordStatus.SCORED]
    with pytest.raises(LeaseLost):
        await store.finish_record(late, record(late, 0, value=0.25))
    failed = (await store.find("record"))[0]
    assert (failed.status, failed.final_answer, failed.score) == (RecordStatus.FAILED, "0.25", 0.25)
    assert failed.reason == "no attempt of 1 finished; lease lost before it was scored"
    assert await store.finalize_group(new, GroupVerdict(slots={0: "failed", 1: "no signal"}), [])
    rate = (await store.pass_rates())["q0"]
    assert (rate.num_scored, rate.mean_score) == (1, 1.0)
    await store.close()


@scenario
async def test_a_released_group_is_free_at_once_and_not_held_against_it(open_backend: Open) -> None:
    store = await open_backend(max_attempts=2)
    await store.add_tasks(tasks(1))
    for number in range(5):
        claim = await must_claim(store, f"w{number}")
        await store.append_turn(claim, turn(record(claim, 0).id))
        await store.release(claim)
        with pytest.raises(LeaseLost):
            await store.append_turn(claim, turn(record(claim, 0).id))
    claim = await must_claim(store)
    assert claim.finished == ()
    assert claim.next_attempt == {0: 5, 1: 0}
    assert await play(store, claim)
    await store.release(claim)
    assert (await store.find("task"))[0].status is TaskStatus.COMPLETED
    await store.close()


@scenario
async def test_a_worker_that_leaves_or_restarts_gives_its_groups_up(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await store.heartbeat(worker("a", pid=1))
    await must_claim(store, "a")
    await store.heartbeat(worker("a", pid=2))
    await must_claim(store, "b")
    await store.leave("b")
    assert [each.id for each in await store.workers()] == ["a"]
    assert (await must_claim(store, "a")).claim_no == 3
    await store.close()


def start_and_end() -> subprocess.Popen[bytes]:
    """A child process that has ended and whose parent has not asked for its status: a zombie."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


@scenario
async def test_leases_of_dead_processes_of_a_host_end_at_once(open_backend: Open) -> None:
    ended, unreaped = start_and_end(), start_and_end()
    ended.wait()
    store = await open_backend()
    await store.add_tasks(tasks(2))
    await store.heartbeat(worker("dead", pid=ended.pid))
    await store.heartbeat(worker("elsewhere", pid=ended.pid, host="there"))
    await store.heartbeat(worker("alive", pid=os.getpid()))
    await must_claim(store, "dead")
    await must_claim(store, "elsewhere")
    assert await claim_train(store, "alive") is None
    assert await store.expire_dead_workers("here") == ["dead"]
    assert await store.expire_dead_workers("here") == []
    assert (await must_claim(store, "alive")).task.seq == 0
    await store.heartbeat(worker("unreaped", pid=unreaped.pid))
    assert await store.expire_dead_workers("here") == ["unreaped"]
    unreaped.wait()
    await store.close()


@scenario
async def test_a_cancelled_claim_leaves_no_group_leased(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    waiting = asyncio.create_task(store.claim("w", splits=TRAIN))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await store.set_state("a write", "behind which the claim is committed and its release is queued")
    await must_claim(store, "other")
    await store.close()


# --- Turns, records, verdicts ----------------------------------------------------------------------------------------


@scenario
async def test_a_turn_comes_back_token_for_token(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    claim = await must_claim(store)
    call = ToolCall(id="c1", name="search", arguments={"q": "x"}, status=CallStatus.BAD_ARGUMENTS, reason="no")
    late = ToolResult(call_id="c1", name="search", arguments=None, status=ResultStatus.TIMEOUT, content="late")
    sent = replace(
        turn(record(claim, 0).id, 0, size=2000),
        new_messages=({"role": "tool", "content": "数\n\x00"},),
        reply=Reply(content="a", reasoning="b", calls=(call,)),
        tool_results=(late,),
        flags=frozenset({Flag.FORMAT_ERROR, Flag.SUMMARY}),
    )
    await store.append_turn(claim, sent)
    await store.append_turn(claim, sent)
    assert await store.find("turn", record=sent.record) == [sent]
    assert await store.find("record") == [Record(task=claim.task.id, slot=0, attempt=0)]
    await store.close()


@scenario
async def test_records_and_turns_of_another_group_are_refused(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(2))
    claim, other = await must_claim(store), await must_claim(store)
    for wrong in (record(other, 0).id, f"{claim.task.id}/7/0", f"{claim.task.id}/x/0", claim.task.id):
        with pytest.raises(StoreError):
            await store.append_turn(claim, turn(wrong))
    with pytest.raises(StoreError, match="slot"):
        await store.finish_record(claim, record(other, 0))
    with pytest.raises(StoreError, match="still running"):
        await store.finish_record(claim, Record(task=claim.task.id, slot=0, attempt=0))
    with pytest.raises(StoreError, match="3 sampled ids but 1 log-probs"):
        await store.append_turn(claim, replace(turn(record(claim, 0).id), logprobs=(0.0,)))
    with pytest.raises(StoreError, match="int32"):
        await store.append_turn(claim, replace(turn(record(claim, 0).id), prompt_ids_delta=(2**31,)))
    assert await store.count("turn") == 0
    await store.close()


@scenario
async def test_a_finished_record_can_be_scored_later_by_its_owner(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    claim = await must_claim(store)
    judged = Score(value=None, reason="judge down")
    first = replace(record(claim, 0), status=RecordStatus.UNSCORED, reason="judge down", scores=(judged,))
    await store.finish_record(claim, first)
    second = replace(first, status=RecordStatus.SCORED, reason="", scores=(judged, Score(value=1.0)))
    await store.finish_record(claim, second)
    assert await store.find("record") == [second]
    await store.close()


@scenario
async def test_a_group_is_finalised_once(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    claim = await must_claim(store)
    await store.finish_record(claim, record(claim, 0))
    await store.append_turn(claim, turn(record(claim, 1).id))
    verdict = GroupVerdict(slots={0: 0.5, 1: "cancelled"})
    rows = [row(claim, record(claim, 0))]
    answers = await asyncio.gather(*(store.finalize_group(claim, verdict, rows) for _ in range(10)))
    assert sorted(answers) == [False] * 9 + [True]
    assert await store.verdict(claim.task.id) == verdict
    assert await store.count("row") == 1
    (task,) = await store.find("task")
    assert task.status is TaskStatus.COMPLETED
    assert [each.status.value for each in await store.find("record")] == ["scored", "abandoned"]
    with pytest.raises(LeaseLost, match="completed"):
        await store.append_turn(claim, turn(record(claim, 1).id, 1))
    await store.close()


@scenario
async def test_what_would_spoil_training_is_refused_before_anything_is_written(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks([*tasks(1), *tasks(1, split=Split.EVAL)])
    claim = await must_claim(store)
    mine = record(claim, 0)
    good = row(claim, mine)
    advantage = GroupVerdict(slots={0: 1.0})
    with pytest.raises(StoreError, match="has no record"):
        await store.finalize_group(claim, advantage, [good])
    await store.finish_record(claim, mine)
    refused = [
        (GroupVerdict(slots={0: math.nan}), [], "finite"),
        (GroupVerdict(slots={5: 1.0}), [], "slots 0 to 1"),
        (GroupVerdict(slots={0: "filtered"}), [good], "no advantage"),
        (GroupVerdict(slots={0: 1.0}, status=TaskStatus.ABANDONED), [good], "abandoned"),
        (GroupVerdict(slots={0: 1.0}, status=TaskStatus.RUNNING), [], "ends completed or abandoned"),
        (advantage, [replace(good, mask=(0,))], "lengths differ"),
        (advantage, [replace(good, task="run/train/0/other")], "not of the claimed task"),
        (advantage, [row(claim, mine, advantage=math.inf)], "finite"),
        (advantage, [good, good], "two rows"),
    ]
    for verdict, rows, message in refused:
        with pytest.raises(StoreError, match=message):
            await store.finalize_group(claim, verdict, rows)
    assert await store.count("row") == 0
    held_out = await store.claim("w", splits=[Split.EVAL])
    assert held_out is not None
    with pytest.raises(StoreError, match="only groups of the train split"):
        await store.finalize_group(held_out, advantage, [row(held_out, record(held_out, 0))])
    assert await store.finalize_group(claim, advantage, [good])
    await store.close()


# --- Take, ack, drop -------------------------------------------------------------------------------------------------


@scenario
async def test_rows_are_taken_lowest_group_first_in_seq_and_slot_order(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(4))
    await publish(store, 0)
    claims = [await must_claim(store) for _ in range(4)]
    for number in (3, 1):
        await play(store, claims[number])
    assert await take(store, 1, groups=3) is None
    await play(store, claims[2])
    taken = await must_take(store, 1, groups=2)
    assert [(each.seq, each.slot) for each in taken.rows] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert (taken.num_groups, taken.dropped, taken.end_of_stream) == (2, {}, False)
    await store.close()


@scenario
async def test_a_row_comes_back_token_for_token(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    claim = await must_claim(store)
    for slot in (0, 1):
        await store.finish_record(claim, record(claim, slot))
    sent = replace(row(claim, record(claim, 0), versions=(0,) * 5000), behavior_logprobs=(-0.25,) * 5001)
    await store.finalize_group(claim, GroupVerdict(slots={0: 1.0, 1: "x"}), [sent])
    assert (await must_take(store, 1)).rows == (sent,)
    assert math.isnan(row(claim, record(claim, 0)).behavior_logprobs[0])
    await store.close()


@scenario
async def test_in_order_waits_for_the_lowest_unfinished_group(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    claims = [await must_claim(store) for _ in range(3)]
    await play(store, claims[1])
    await play(store, claims[2])
    assert await take(store, 1, in_order=True) is None
    await store.finalize_group(claims[0], GroupVerdict(slots={}, status=TaskStatus.ABANDONED), [])
    assert seqs(await must_take(store, 1, in_order=True)) == [1, 1]
    await store.close()


@scenario
async def test_a_taken_step_is_given_again_until_it_is_acknowledged(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    for _ in range(3):
        await play_next(store)
    first = await must_take(store, 1)
    again = await must_take(store, 1)
    assert [each.id for each in again.rows] == [each.id for each in first.rows]
    assert await store.ack(1) == 2
    assert await store.ack(1) == 0
    with pytest.raises(StoreError, match="rewind"):
        await take(store, 1)
    await publish(store, 1)
    assert seqs(await must_take(store, 2)) == [1, 1]
    assert await store.row_states(first.rows[0].task) == [(each.id, RowStatus.TRAINED, 1, "") for each in first.rows]
    assert [each.trained_count for each in await store.find("row", status=RowStatus.TRAINED)] == [1, 1]
    assert await store.count("row", status="ready") == 2
    await store.close()


@scenario
async def test_the_last_smaller_step_is_trained_and_then_the_stream_ends(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    for _ in range(2):
        await play_next(store)
    assert not (await must_take(store, 1, groups=2)).end_of_stream
    await store.ack(1)
    await publish(store, 1)
    await store.end_stream(Split.TRAIN)
    assert await take(store, 2, groups=2) is None
    await play_next(store, versions=[1])
    last = await must_take(store, 2, groups=2)
    assert (last.num_groups, last.end_of_stream) == (1, True)
    await store.ack(2)
    await publish(store, 2)
    end = await must_take(store, 3, groups=2)
    assert (end.rows, end.num_groups, end.end_of_stream) == ((), 0, True)
    assert await store.add_tasks(tasks(3)) == 0
    assert (await must_take(store, 3, groups=2)).end_of_stream
    assert await store.add_tasks(tasks(1, epoch=1)) == 1
    assert await take(store, 3, groups=2) is None
    await store.close()


@scenario
async def test_stale_rows_are_dropped_counted_and_their_groups_pushed_again(open_backend: Open) -> None:
    store = await open_backend(max_attempts=2)
    await store.add_tasks(tasks(3))
    for version in range(10):
        await publish(store, version)
    stale = await play_next(store, versions=[0, 9])
    await play_next(store, versions=[2])
    pace = Admission(groups_per_step=1, max_staleness=-7)
    assert await claim_train(store, admission=replace(pace, max_staleness=-8)) is None
    assert await take(store, 10, 9, groups=2) is None
    assert await store.row_states(stale.task.id) == [
        (f"{stale.task.id}/{slot}/0", RowStatus.DROPPED, None, "stale") for slot in (0, 1)
    ]
    (again,) = await store.find("task", task_id="q0")
    assert (again.seq, again.status) == (3, TaskStatus.CREATED)
    assert await store.verdict(again.id) is None
    assert (await must_claim(store, admission=pace)).task.seq == 2
    claim = await must_claim(store, admission=pace)
    assert (claim.task.seq, claim.finished, claim.next_attempt) == (3, (), {0: 1, 1: 1})
    await play(store, claim, versions=[9])
    taken = await must_take(store, 10, 9, groups=2)
    assert (seqs(taken), taken.dropped) == ([1, 1, 3, 3], {"stale": 2})
    assert (await must_take(store, 10, 9, groups=2)).dropped == {"stale": 2}
    assert await store.count("record", task=again.id) == 4
    await store.close()


@scenario
async def test_a_stream_that_ended_is_opened_again(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    await play_next(store)
    await store.end_stream(Split.TRAIN)
    assert await store.stream_ended(Split.TRAIN)
    assert not await store.stream_ended(Split.EVAL)
    await store.reopen_stream(Split.TRAIN)
    assert not await store.stream_ended(Split.TRAIN)
    assert await take(store, 1, groups=2) is None
    await store.close()


@scenario
async def test_rows_of_the_weights_in_training_are_never_stale(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    await play_next(store, versions=[0])
    taken = await must_take(store, 1, 0, drop_staleness=0)
    assert (len(taken.rows), taken.dropped) == (2, {})
    await store.close()


@scenario
async def test_a_group_goes_stale_only_so_often(open_backend: Open) -> None:
    store = await open_backend(max_attempts=2)
    await store.add_tasks(tasks(1))
    for version in range(4):
        await publish(store, version)
    for _ in range(3):
        await play_next(store, versions=[0])
        assert await take(store, 4, 3, drop_staleness=2) is None
    (task,) = await store.find("task")
    assert (task.status, task.seq) == (TaskStatus.COMPLETED, 2)
    await store.end_stream(Split.TRAIN)
    end = await must_take(store, 4, 3, drop_staleness=2)
    assert (end.rows, end.dropped, end.end_of_stream) == ((), {"stale": 6}, True)
    await store.close()


@scenario
async def test_a_partly_stale_group_is_trained_with_what_is_left(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    for version in range(12):
        await publish(store, version)
    claim = await must_claim(store)
    for slot in (0, 1):
        await store.finish_record(claim, record(claim, slot))
    rows = [row(claim, record(claim, slot), versions=[version]) for slot, version in ((0, 1), (1, 2))]
    await store.finalize_group(claim, GroupVerdict(slots={0: 1.0, 1: -1.0}), rows)
    taken = await must_take(store, 11, 10)
    assert ([each.slot for each in taken.rows], taken.dropped) == ([1], {"stale": 1})
    await store.close()


@scenario
async def test_a_take_for_a_version_nobody_published_is_refused(open_backend: Open) -> None:
    store = await open_backend()
    with pytest.raises(StoreError, match="version 0 was never published in run run"):
        await take(store, 1)
    with pytest.raises(StoreError, match="at least 1"):
        await take(store, 1, groups=0)
    await store.close()


# --- Rewind ----------------------------------------------------------------------------------------------------------


@scenario
async def test_a_row_taken_and_not_acknowledged_is_trained_only_if_its_step_was_saved(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    for _ in range(3):
        await play_next(store)
    first = await must_take(store, 1)
    await publish(store, 1)
    assert await store.rewind(1, 1) == {"trained": 2, "ready": 0, "dropped": 0, "groups_again": 0}
    second = await must_take(store, 2)
    assert {each.id for each in first.rows}.isdisjoint(each.id for each in second.rows)
    assert await store.rewind(1, 1) == {"trained": 0, "ready": 2, "dropped": 0, "groups_again": 0}
    assert [each.id for each in (await must_take(store, 2)).rows] == [each.id for each in second.rows]
    await store.close()


@scenario
async def test_groups_of_a_lineage_that_ended_run_again_under_their_old_seq(open_backend: Open) -> None:
    store = await open_backend(max_attempts=1)
    await store.add_tasks(tasks(5))
    await publish(store, 0)
    await play_next(store)
    await play_next(store)
    for step in (1, 2):
        await must_take(store, step)
        await store.ack(step)
        await publish(store, step)
    mixed = await play_next(store, versions=[0, 2])
    await must_take(store, 3)
    await store.ack(3)
    await publish(store, 3)
    running = await must_claim(store)
    assert await store.rewind(1, 1) == {"trained": 0, "ready": 2, "dropped": 2, "groups_again": 1}
    await publish(store, 1)
    latest = await store.latest_version()
    assert latest is not None
    assert (latest.version, await store.next_version()) == (1, 4)
    with pytest.raises(LeaseLost):
        await store.finalize_group(mixed, GroupVerdict(slots={}), [])
    assert await play(store, running, versions=[2])
    again = await must_claim(store)
    assert (again.task.id, again.task.seq, again.finished) == (mixed.task.id, 2, ())
    assert again.claim_no == mixed.claim_no + 2
    await play(store, again, versions=[1])
    assert seqs(await must_take(store, 2, 1)) == [1, 1]
    await store.ack(2)
    await publish(store, 4, step=2, parent=1)
    assert seqs(await must_take(store, 3, 4)) == [2, 2]
    assert [each.status.value for each in await store.find("task", seq=3)] == ["created"]
    assert await store.row_states(running.task.id) == [
        (f"{running.task.id}/{slot}/0", RowStatus.DROPPED, None, "ancestor") for slot in (0, 1)
    ]
    await store.close()


@scenario
async def test_a_group_that_was_half_played_before_a_restore_is_played_again_whole(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1))
    await publish(store, 0)
    await publish(store, 1)
    claim = await must_claim(store)
    await store.finish_record(claim, record(claim, 0))
    await store.release(claim)
    await store.rewind(0, 0)
    await publish(store, 0)
    await store.publish_version(WeightVersion(version=2, step=1, parent=0))
    claim = await must_claim(store)
    assert [each.slot for each in claim.finished] == [0]
    late = record(claim, 1)
    await store.finish_record(claim, late)
    rows = [row(claim, claim.finished[0], versions=[1]), row(claim, late, versions=[2])]
    await store.finalize_group(claim, GroupVerdict(slots={0: 1.0, 1: -1.0}), rows)
    assert await take(store, 2, 2) is None
    again = await must_claim(store)
    assert (again.task.seq, again.finished) == (0, ())
    await play(store, again, versions=[2])
    taken = await must_take(store, 2, 2)
    assert ([each.slot for each in taken.rows], taken.dropped) == ([0, 1], {"ancestor": 2})
    await store.close()


@scenario
async def test_a_restore_narrows_admission_to_the_version_in_force(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(10))
    pace = Admission(groups_per_step=1, max_staleness=0)
    for version in range(4):
        await publish(store, version)
    await publish(store, 1)
    assert [(await must_claim(store, admission=pace)).task.seq for _ in range(2)] == [0, 1]
    assert await claim_train(store, admission=pace) is None
    await store.close()


@scenario
async def test_a_version_number_is_never_reused_for_other_weights(open_backend: Open) -> None:
    store = await open_backend()
    assert await store.latest_version() is None
    assert await store.next_version() == 0
    zero = WeightVersion(version=0, step=0, parent=None, tensor_hash="a", engines=("e1",))
    one = WeightVersion(version=1, step=1, parent=0, tensor_hash="b")
    for version in (zero, one, zero):
        await store.publish_version(version)
    assert await store.latest_version() == zero
    await store.publish_version(replace(one, parent=None))
    assert await store.latest_version() == one
    assert await store.find("version") == [zero, one]
    for other in (replace(one, step=2), replace(one, tensor_hash="c"), replace(one, parent=1)):
        with pytest.raises(StoreError):
            await store.publish_version(other)
    await store.close()


# --- Registration, state, looking ------------------------------------------------------------------------------------


@scenario
async def test_services_and_state_are_kept(open_backend: Open) -> None:
    store = await open_backend()
    service = InferenceService(url="http://a", kind="slots", model="m", policy_version=1)
    await store.put_service(service)
    await store.put_service(replace(service, running=3))
    assert await store.services() == [replace(service, running=3)]
    assert await store.get_state("manifest") is None
    await store.set_state("manifest", {"a": [1, None, True]})
    assert await store.get_state("manifest") == {"a": [1, None, True]}
    await store.set_state("manifest", 7)
    assert await store.get_state("manifest") == 7
    await store.close()


@scenario
async def test_documents_are_found_by_any_of_their_fields(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(3))
    await publish(store, 0)
    await play_next(store)
    assert [task.task_id for task in await store.find("task", query="question 1", status="created")] == ["q1"]
    assert await store.count("task", query="question 1") == 1
    assert await store.count("record", status=RecordStatus.SCORED, slot=1) == 1
    assert await store.count("turn") == 2
    assert await store.count("worker", kind="") == 1
    with pytest.raises(StoreError, match="no field 'colour'"):
        await store.find("task", colour="red")
    with pytest.raises(StoreError, match="no documents of kind 'tusk'"):
        await store.count("tusk")
    assert await store.verdict("no such task") is None
    await store.close()


@scenario
async def test_a_failing_write_fails_only_its_own_caller(open_backend: Open) -> None:
    store = await open_backend()
    await store.add_tasks(tasks(1, slots=4))
    claim = await must_claim(store)
    late = replace(claim, claim_no=0)
    answers = await asyncio.gather(
        *(
            store.append_turn(late if number % 5 == 0 else claim, turn(f"{claim.task.id}/{number % 4}/0", number))
            for number in range(100)
        ),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [LeaseLost if n % 5 == 0 else type(None) for n in range(100)]
    assert await store.count("turn") == 80
    await store.close()


@scenario
async def test_a_closed_store_says_so_and_opens_again(open_backend: Open) -> None:
    store = await open_backend()
    writes = [asyncio.create_task(store.set_state(f"k{i}", i)) for i in range(50)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*writes)
    await store.close()
    for broken in (store.get_state("k"), store.set_state("k", 1)):
        with pytest.raises(StoreError, match="not open"):
            await broken
    await store.open()
    assert [await store.get_state(f"k{i}") for i in range(50)] == list(range(50))
    await store.close()


def test_open_store_gives_a_store(tmp_path: Path) -> None:
    store: Store = open_store(f"sqlite:///{tmp_path}/run.db", run="r")
    assert store.run == "r"
