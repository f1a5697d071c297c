"""Rounds of held-out evaluation: when they are pushed, when they are done, and what counts in them."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, questions, with_store

from agentrl.cli.evaluation import EvaluationRounds
from agentrl.config import RunConfig
from agentrl.errors import LeaseLost
from agentrl.store import Store
from agentrl.telemetry import Telemetry
from agentrl.types import Claim, GroupVerdict, Outcome, Record, RecordStatus, Score, Split, WeightVersion, Worker


class Events:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    def write(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def configure(folder: Path, *flags: str) -> RunConfig:
    return configured(folder, "--eval_file=held_out.jsonl", "--eval_generations=1", *flags)


def rounds_of(store: Store, config: RunConfig, count: int = 1, sink: Events | None = None) -> EvaluationRounds:
    return EvaluationRounds(store, config, questions(count), Telemetry([sink or Events()]))


def version(step: int, number: int | None = None) -> WeightVersion:
    return WeightVersion(version=step if number is None else number, step=step, parent=None)


async def soon(work: Any) -> Any:
    return await asyncio.wait_for(work, 10)


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
    config, sink = configure(tmp_path, "--eval_generations=2"), Events()

    async def scenario(store: Store) -> None:
        playing = asyncio.create_task(rounds_of(store, config, 2, sink).play(version(0)))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 1.0, 0.0)
        await asyncio.sleep(0.3)
        assert not playing.done()
        await finish(store, await claimed(store, "a"), 1.0, None)
        done = await soon(playing)
        assert done.success == pytest.approx(2 / 3)
        assert (len(done.records), done.num_unscored) == (4, 1)

    with_store(config, scenario)
    (event,) = sink.events
    assert {name: event[name] for name in ("kind", "step", "records", "unscored")} == {
        "kind": "evaluation",
        "step": 0,
        "records": 4,
        "unscored": 1,
    }


def test_a_round_that_was_played_is_not_played_again_but_another_version_is(tmp_path: Path) -> None:
    config = configure(tmp_path)

    async def scenario(store: Store) -> None:
        first = rounds_of(store, config)
        await first.push(version(0))
        await finish(store, await claimed(store, "a"), 1.0)
        assert (await soon(first.play(version(0)))).success == 1.0
        assert (await soon(rounds_of(store, config).play(version(0)))).success == 1.0
        assert await store.claim("a", splits=(Split.EVAL,)) is None
        later = asyncio.create_task(rounds_of(store, config).play(version(0, number=9)))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 0.0)
        assert (await soon(later)).success == 0.0

    with_store(config, scenario)


def test_late_records_of_a_lost_lease_do_not_count(tmp_path: Path) -> None:
    config = configure(tmp_path)

    async def scenario(store: Store) -> None:
        rounds = rounds_of(store, config)
        await rounds.push(version(0))
        late = await claimed(store, "late")
        await store.release(late)
        new = await claimed(store, "new")
        await finish(store, replace(new, next_attempt={0: 1}), 0.0)
        with pytest.raises(LeaseLost):
            await store.finish_record(late, record(late, 0, 1.0))
        assert {str(each.status) for each in await store.find("record")} == {"expired", "scored"}
        assert (await soon(rounds.play(version(0)))).success == 0.0

    with_store(config, scenario)


def test_nothing_scored_is_a_success_of_zero_that_says_how_many_are_missing(tmp_path: Path) -> None:
    config = configure(tmp_path)

    async def scenario(store: Store) -> None:
        rounds = rounds_of(store, config)
        await rounds.push(version(0))
        await finish(store, await claimed(store, "a"), None)
        done = await soon(rounds.play(version(0)))
        assert (done.success, done.num_unscored) == (0.0, 1)

    with_store(config, scenario)


async def pushed_after(store: Store, config: RunConfig, steps: list[int], sink: Events | None = None) -> list[int]:
    """Versions whose round was pushed when these steps were published one after the other."""
    rounds = rounds_of(store, config, sink=sink)
    for step in steps:
        await store.publish_version(version(step))
        await rounds.tick()
    return sorted(task.epoch for task in await store.find("task", split=Split.EVAL))


def test_eval_steps_pushes_a_round_whenever_it_falls_due(tmp_path: Path) -> None:
    for flags, expected in ((["--eval_steps=2"], [2, 4]), (["--eval_steps=3"], [3]), ([], [])):
        config = configure(tmp_path / f"every{len(expected)}", *flags)
        assert with_store(config, lambda store, config=config: pushed_after(store, config, [0, 1, 2, 3, 4])) == expected


def test_a_round_that_was_passed_over_is_counted(tmp_path: Path) -> None:
    config, sink = configure(tmp_path, "--eval_steps=2"), Events()
    assert with_store(config, lambda store: pushed_after(store, config, [0, 5], sink)) == [5]
    assert [(event["kind"], event["step"]) for event in sink.events] == [("evaluation_skipped", 2)]


def test_nothing_is_evaluated_without_tasks_or_when_it_is_switched_off(tmp_path: Path) -> None:
    async def nothing(store: Store, config: RunConfig) -> None:
        assert await soon(rounds_of(store, config).play(version(0))) is None
        assert not await store.find("task")

    for folder, flags in (("off", ["--eval_strategy=no"]), ("none", ["--eval_file="])):
        config = configure(tmp_path / folder, *flags)
        with_store(config, lambda store, config=config: nothing(store, config))
