"""Rounds of held-out evaluation while training goes on."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cli_help import configured, play, questions, with_store

from agentrl.cli.evaluation import Evaluation, EvaluationRounds, evaluations
from agentrl.cli.feed import evaluation_tasks
from agentrl.config import RunConfig
from agentrl.errors import LeaseLost
from agentrl.store import Store
from agentrl.telemetry import Telemetry
from agentrl.types import (
    Claim,
    GroupVerdict,
    Outcome,
    Record,
    RecordStatus,
    Score,
    Split,
    Task,
    TaskStatus,
    WeightVersion,
    Worker,
)


class Events:
    """A sink that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[dict] = []

    def write(self, event: dict) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def version_of(step: int) -> WeightVersion:
    return WeightVersion(version=step, step=step, parent=step - 1 if step else None)


async def round_at(store: Store, config: RunConfig, held_out: Sequence[Task], step: int) -> Evaluation:
    found = await EvaluationRounds(store, config, held_out, Telemetry([])).play(version_of(step))
    assert found is not None
    return found


async def claimed(store: Store, worker: str) -> Claim:
    await store.heartbeat(Worker(id=worker, kind="sampler", host="h", pid=1))
    claim = await store.claim(worker, splits=(Split.EVAL,))
    assert claim is not None
    return claim


def record(claim: Claim, slot: int, value: float | None) -> Record:
    return Record(
        task=claim.task.id,
        slot=slot,
        attempt=claim.next_attempt.get(slot, 0),
        status=RecordStatus.UNSCORED if value is None else RecordStatus.SCORED,
        reason="no verdict" if value is None else "",
        outcome=Outcome.ANSWERED,
        scores=(Score(value=value),),
    )


async def finish(store: Store, claim: Claim, *values: float | None) -> None:
    for slot, value in enumerate(values):
        await store.finish_record(claim, record(claim, slot, value))
    slots = {slot: "evaluation" for slot in range(len(values))}
    await store.finalize_group(claim, GroupVerdict(slots=slots), [])


def test_a_round_waits_until_it_is_played_and_averages_what_could_be_scored(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=2")

    async def scenario(store: Store) -> None:
        round_ = asyncio.create_task(round_at(store, config, questions(2), 0))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 1.0, 0.0)
        await asyncio.sleep(0.3)
        assert not round_.done()
        await finish(store, await claimed(store, "a"), 1.0, None)
        done = await asyncio.wait_for(round_, 5)
        assert done.success == pytest.approx(2 / 3)
        assert (len(done.records), done.num_unscored) == (4, 1)

    with_store(config, scenario)


def test_a_round_that_was_played_is_not_played_again(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        await store.add_tasks(evaluation_tasks(config, questions(), 0))
        await finish(store, await claimed(store, "a"), 1.0)
        again = await asyncio.wait_for(round_at(store, config, questions(), 0), 5)
        assert again.success == 1.0
        assert await store.claim("a", splits=(Split.EVAL,)) is None
        later = asyncio.create_task(round_at(store, config, questions(), 9))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 0.0)
        assert (await asyncio.wait_for(later, 5)).success == 0.0

    with_store(config, scenario)


def test_late_records_of_a_lost_lease_do_not_count(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        await store.add_tasks(evaluation_tasks(config, questions(), 0))
        late = await claimed(store, "late")
        await store.release(late)
        new = await claimed(store, "new")
        await finish(store, replace(new, next_attempt={0: 1}), 0.0)
        with pytest.raises(LeaseLost):
            await store.finish_record(late, record(late, 0, 1.0))
        assert {str(each.status) for each in await store.find("record")} == {"expired", "scored"}
        assert (await round_at(store, config, questions(), 0)).success == 0.0

    with_store(config, scenario)


def test_nothing_scored_is_a_success_of_zero_that_says_how_many_are_missing(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        await store.add_tasks(evaluation_tasks(config, questions(), 0))
        await finish(store, await claimed(store, "a"), None)
        done = await round_at(store, config, questions(), 0)
        assert (done.success, done.num_unscored) == (0.0, 1)

    with_store(config, scenario)


def test_held_out_tasks_are_played_before_training_tasks(tmp_path: Path) -> None:
    played = play(tmp_path, "--target_concurrency=1", train=questions(2), held_out=questions(2))
    splits = [session.split("/")[1] for session, _ in played.engine.prompts]
    assert splits == sorted(splits)


def test_rounds_fall_due_by_eval_steps_and_those_passed_over_are_told(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1", "--eval_steps=2")
    sink = Events()

    async def scenario(store: Store) -> None:
        rounds = EvaluationRounds(store, config, questions(), Telemetry([sink]))
        for step in range(3):
            await store.publish_version(version_of(step))
            await rounds.tick()
        assert await store.count("task", split=Split.EVAL, epoch=2) == 1
        await finish(store, await claimed(store, "a"), 1.0)
        await rounds.tick()
        assert rounds.finished[2].success == 1.0
        for step in range(3, 8):
            await store.publish_version(version_of(step))
        await rounds.tick()
        assert await store.count("task", split=Split.EVAL, epoch=7) == 1

    with_store(config, scenario)
    told = [(event["kind"], event["step"]) for event in sink.events]
    assert told == [("evaluation", 2), ("evaluation_skipped", 4)]


def test_without_eval_steps_no_round_falls_due(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        rounds = EvaluationRounds(store, config, questions(), Telemetry([]))
        for step in range(5):
            await store.publish_version(version_of(step))
            await rounds.tick()
        assert await store.count("task", split=Split.EVAL) == 0

    with_store(config, scenario)


def test_nothing_is_evaluated_without_held_out_tasks(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_steps=1")

    async def scenario(store: Store) -> None:
        rounds = EvaluationRounds(store, config, [], Telemetry([]))
        await store.publish_version(version_of(1))
        assert await asyncio.wait_for(rounds.play(version_of(1)), 5) is None
        assert await store.count("task", split=Split.EVAL) == 0

    with_store(config, scenario)


def test_rounds_of_all_starts_are_kept_by_step(tmp_path: Path) -> None:
    config = configured(tmp_path)

    async def scenario(store: Store) -> None:
        for step, value in ((0, 0.0), (5, 1.0), (5, 0.5)):
            version = WeightVersion(version=await store.next_version(), step=step, parent=None)
            await store.publish_version(version)
            rounds = EvaluationRounds(store, config, questions(1), Telemetry([]))
            await rounds.push(version)
            claim = await claimed(store, "s")
            await store.finish_record(claim, record(claim, 0, value))
            verdict = GroupVerdict(slots={0: "evaluation"}, status=TaskStatus.COMPLETED)
            await store.finalize_group(claim, verdict, [])
            await rounds.tick()
        told = await evaluations(store)
        assert [(each["step"], each["version"], each["success"]) for each in told] == [(0, 0, 0.0), (5, 2, 0.5)]

    with_store(config, scenario)
