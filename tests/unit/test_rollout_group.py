"""Groups: attempts, stragglers, lost leases, verdicts and rows, as the store keeps them."""

import asyncio
from pathlib import Path

import pytest
from rollout_help import WORKER, Model, World, a_task, answer, call, in_world, play

from agentrl.config import AlgoOptions
from agentrl.errors import EngineError, EngineOutage, LeaseLost
from agentrl.scoring import MCPScorerFactory
from agentrl.types import Flag, Outcome, Record, RecordStatus, Split, TaskStatus, Worker

LATE = Worker(id="other", kind="sampler", host="h", pid=2)


def by_id(records: list[Record]) -> dict[tuple[int, int], Record]:
    return {(record.slot, record.attempt): record for record in records}


def test_siblings_are_judged_together_and_become_rows(tmp_path: Path) -> None:
    played = play(tmp_path, Model({0: [call(), answer("3")], 1: [answer("4")]}), task=a_task(num_slots=2))
    assert played.verdict.slots == {0: 1.0, 1: -1.0}
    assert {row.slot: [span.advantage for span in row.turns] for row in played.rows} == {0: [1.0, 1.0], 1: [-1.0]}
    assert {row.slot: row.reward for row in played.rows} == {0: 1.0, 1: 0.0}


def test_a_flagged_turn_of_a_good_record_is_capped_at_zero(tmp_path: Path) -> None:
    bad = '<tool_call>\n{"name": \n</tool_call>'
    played = play(tmp_path, Model({0: [bad, answer("3")], 1: [answer("4")]}), task=a_task(num_slots=2))
    assert Flag.FORMAT_ERROR in next(t for t in played.turns if t.record.endswith("/0/0")).flags
    (good,) = [row for row in played.rows if row.slot == 0]
    assert [span.advantage for span in good.turns] == [0.0, 1.0]


def test_a_broken_sibling_costs_only_itself(tmp_path: Path) -> None:
    engine = Model({0: [answer("3")], 1: [EngineError("boom")], 2: [answer("4")]})
    played = play(tmp_path, engine, task=a_task(num_slots=3), max_attempts=2)
    assert played.verdict.slots == {0: 1.0, 1: "unscored", 2: -1.0}
    assert played.verdict.status is TaskStatus.COMPLETED
    assert {row.slot for row in played.rows} == {0, 2}
    broken = [record for record in played.records if record.slot == 1]
    assert [(r.attempt, r.outcome, r.status, r.score) for r in broken] == [
        (0, Outcome.ERROR, RecordStatus.FAILED, None),
        (1, Outcome.ERROR, RecordStatus.FAILED, None),
    ]


def test_every_attempt_keeps_its_own_record(tmp_path: Path) -> None:
    breaks = iter([EngineError("first"), EngineError("second")])

    def sometimes() -> asyncio.Future:
        if (error := next(breaks, None)) is not None:
            raise error
        return asyncio.sleep(0)  # type: ignore[return-value]

    played = play(tmp_path, Model([call(), sometimes]), max_attempts=3)
    assert [(r.attempt, r.status, r.error and r.error["message"], r.num_turns) for r in played.records] == [
        (0, RecordStatus.FAILED, "first", 1),
        (1, RecordStatus.FAILED, "second", 1),
        (2, RecordStatus.SCORED, None, 2),
    ]
    assert [turn.record[-1] + str(turn.turn) for turn in played.turns] == ["00", "10", "20", "21"]


def test_a_timeout_is_not_tried_again(tmp_path: Path) -> None:
    engine = Model([asyncio.Event().wait])
    assert len(play(tmp_path, engine, episode_timeout=0.1).records) == 1


def test_unscored_is_never_zero(tmp_path: Path) -> None:
    def crash(answer: str, truth: str) -> float:
        if answer == "9":
            raise ValueError("cannot judge")
        return float(answer == truth)

    MCPScorerFactory.register_scorer("crash on 9", crash)
    engine = Model({0: [answer("9")], 1: [answer("3")], 2: [answer("4")]})
    played = play(tmp_path, engine, task=a_task(num_slots=3, scorer="crash on 9"))
    unscored = by_id(played.records)[0, 0]
    assert (unscored.status, unscored.score, unscored.outcome) == (RecordStatus.UNSCORED, None, Outcome.ANSWERED)
    assert "cannot judge" in unscored.reason
    assert played.verdict.slots == {0: "unscored", 1: 1.0, 2: -1.0}
    assert {row.slot for row in played.rows} == {1, 2}


def test_a_group_whose_scores_are_equal_is_abandoned_without_rows(tmp_path: Path) -> None:
    played = play(tmp_path, Model([answer("3")]), task=a_task(num_slots=2))
    assert (played.verdict.status, played.verdict.reason, played.rows) == (TaskStatus.ABANDONED, "no_signal", [])


@pytest.mark.parametrize("split", [Split.EVAL, Split.TEST])
def test_held_out_groups_never_make_rows(tmp_path: Path, split: Split) -> None:
    engine = Model({0: [answer("3")], 1: [answer("4")]})
    played = play(tmp_path, engine, task=a_task(num_slots=2, split=split), algo=AlgoOptions(drop_zero_advantage=False))
    assert played.rows == []
    assert played.verdict.status is TaskStatus.COMPLETED
    assert sorted(record.score for record in played.records if record.score is not None) == [0.0, 1.0]
    assert {turn.sampling.temperature for turn in played.turns} == {0.0}


def test_stragglers_are_abandoned_after_the_group_deadline_with_what_they_did(tmp_path: Path) -> None:
    engine = Model({0: [answer("3")], 1: [answer("4")], 2: [call(), asyncio.Event().wait]})
    played = play(tmp_path, engine, task=a_task(num_slots=3), group_deadline=0.3)
    late = by_id(played.records)[2, 0]
    assert (late.status, late.reason, late.outcome) == (RecordStatus.ABANDONED, "group_deadline", Outcome.CANCELLED)
    assert (late.num_turns, late.tool_calls) == (1, 1)
    assert late.sampled_tokens > 0
    assert played.verdict.slots == {0: 1.0, 1: -1.0, 2: "unscored"}
    assert {row.slot for row in played.rows} == {0, 1}


def test_a_straggler_in_its_second_attempt_keeps_the_record_of_the_first(tmp_path: Path) -> None:
    attempts = iter([EngineError("first")])

    async def break_then_hang() -> None:
        if (error := next(attempts, None)) is not None:
            raise error
        await asyncio.Event().wait()

    engine = Model({0: [answer("3")], 1: [answer("4")], 2: [break_then_hang]})
    played = play(tmp_path, engine, task=a_task(num_slots=3), group_deadline=0.3)
    mine = [record for record in played.records if record.slot == 2]
    assert [(r.attempt, r.status, r.outcome) for r in mine] == [
        (0, RecordStatus.FAILED, Outcome.ERROR),
        (1, RecordStatus.ABANDONED, Outcome.CANCELLED),
    ]


def test_a_straggler_that_never_began_is_abandoned_too(tmp_path: Path) -> None:
    engine = Model({None: [asyncio.Event().wait], 0: [answer("3")]})
    played = play(tmp_path, engine, task=a_task(num_slots=3), group_deadline=0.2, concurrency=2)
    assert [(r.slot, r.status) for r in sorted(played.records, key=lambda r: r.slot)] == [
        (0, RecordStatus.SCORED),
        (1, RecordStatus.ABANDONED),
        (2, RecordStatus.ABANDONED),
    ]
    assert played.verdict.reason == "too_few_valid"


def test_a_lost_lease_ends_the_group_and_the_new_owner_plays_only_what_is_missing(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def scenario(world: World) -> None:
        first = await world.claim(a_task(num_slots=2))
        running = asyncio.create_task(world.runner.run(first))
        while not world.told or await world.store.count("turn") < 2:
            await asyncio.sleep(0.01)
        await world.store.leave(WORKER.id)
        await world.store.heartbeat(LATE)
        second = await world.store.claim(LATE.id, splits=(Split.TRAIN,))
        assert second is not None
        go_on.set()
        with pytest.raises(LeaseLost):
            await running
        assert [(record.slot, record.attempt) for record in second.finished] == [(0, 0)]
        verdict = await world.runner.run(second)
        assert set(verdict.slots) == {0, 1}
        records = by_id(await world.records())
        assert set(records) == {(0, 0), (1, 0), (1, 1)}
        assert records[1, 0].status is RecordStatus.EXPIRED
        assert [row.record.rpartition("t/")[2] for row in await world.rows()] == ["0/0", "1/1"]

    in_world(tmp_path, scenario, Model({0: [answer("4")], 1: [call(), go_on.wait]}))


def test_an_engine_outage_is_nobodys_record(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        claim = await world.claim(a_task(num_slots=3))
        with pytest.raises(EngineOutage):
            await world.runner.run(claim)
        assert await world.records() == []

    in_world(tmp_path, scenario, Model({1: [EngineOutage("nobody there")], None: [asyncio.Event().wait]}))


def test_seeds_depend_on_task_and_slot_only(tmp_path: Path) -> None:
    seeds = {}
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        played = play(tmp_path / folder, Model([call(), answer()]), task=a_task(num_slots=2))
        seeds[folder] = {(turn.record, turn.turn): turn.sampling.seed for turn in played.turns}
    assert seeds["a"] == seeds["b"]
    assert len(set(seeds["a"].values())) == 4


def test_a_group_leaves_no_task_behind(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        before = asyncio.all_tasks()
        await world.play(a_task(num_slots=3))
        assert asyncio.all_tasks() == before

    in_world(
        tmp_path,
        scenario,
        Model({0: [answer("3")], 1: [answer("4")], 2: [asyncio.Event().wait]}),
        group_deadline=0.1,
    )
