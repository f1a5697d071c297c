"""Where time goes is measured, kept with the documents, and reduced to numbers a person reads."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from rollout_help import CALCULATOR, Model, World, a_task, answer, call, in_world, play

from agentrl.engine.scripted import Faults
from agentrl.telemetry import JsonlSink, Telemetry, TimingsWindow, reduced
from agentrl.types import Timings


def test_timings_add_up_kind_by_kind() -> None:
    whole = sum([Timings(render=1.0, claim=0.5), Timings(render=2.0, tools=3.0)], Timings())
    assert whole == Timings(render=3.0, tools=3.0, claim=0.5)


def test_mean_median_and_p99_of_every_kind_that_took_time() -> None:
    seen = reduced([Timings(generate=float(n)) for n in range(101)])
    assert seen == {"generate": {"mean": 50.0, "p50": 50.0, "p99": 99.0}}
    assert reduced([]) == {}


def test_a_window_is_one_event_and_the_last_one_is_written_at_close(tmp_path: Path) -> None:
    telemetry = Telemetry([JsonlSink(tmp_path / "metrics.jsonl")])
    window = TimingsWindow(telemetry, window_seconds=3600)
    window.add("turns", Timings(generate=1.0))
    window.add("turns", Timings(generate=3.0))
    window.add("groups", Timings(claim=2.0))
    telemetry.close()
    (event,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert event["kind"] == "timings"
    assert event["turns"] == {"count": 2, "generate": {"mean": 2.0, "p50": 2.0, "p99": 2.98}}
    assert event["groups"]["claim"]["mean"] == 2.0


def test_turn_record_and_group_say_what_their_seconds_went_into(tmp_path: Path) -> None:
    slow_tool = {"calculator": replace(CALCULATOR, latency_seconds=0.05)}
    model = Model([call(), answer()], faults=Faults(seconds_per_token=0.002))
    played = play(tmp_path, model, tools=slow_tool, task=a_task(num_slots=2))
    for record in played.records:
        first, last = [turn.timings for turn in played.turns if turn.record == record.id]
        assert first.tools >= 0.05 > last.tools == 0.0
        assert min(first.generate, last.generate) >= 0.01
        assert min(first.render, last.render) > 0
        assert record.timings.tools == first.tools
        assert min(record.timings.score, record.timings.store) > 0
        assert sum(vars_of(record.timings)) <= record.seconds + record.timings.score + 0.01
    assert played.verdict.timings.tools == sum(record.timings.tools for record in played.records)


def test_the_verdict_in_the_store_keeps_how_long_the_group_was_waited_for(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        sampling = asyncio.create_task(world.sampler().run())
        await asyncio.sleep(0.3)
        task = a_task()
        await world.push([task])
        await sampling
        verdict = await world.store.verdict(replace(task, run=world.store.run).id)
        assert verdict is not None
        assert verdict.timings.claim >= 0.25

    in_world(tmp_path, scenario, Model([answer()]))


def vars_of(timings: Timings) -> list[float]:
    return [getattr(timings, name) for name in Timings.__slots__]
