"""The sampler: from a stream of tasks to finalised groups, and how it ends when something outside of them breaks."""

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_help import WORKER, Model, World, a_task, answer, call, in_world

from agentrl.errors import ConfigError, EngineOutage, GatewayError, StoreError, WaitTimeout
from agentrl.rollout.sampler import stream_ended, wait_for_service
from agentrl.store import Admission
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.types import (
    InferenceService,
    RecordStatus,
    ServiceStatus,
    Split,
    Task,
    TaskStatus,
    WeightVersion,
    Worker,
)

HANG = asyncio.Event  # an event nobody sets


def tasks(number: int, **fields: Any) -> list[Task]:
    return [a_task(f"t{n}", **({"num_slots": 2} | fields)) for n in range(number)]


def right_and_wrong(**options: Any) -> Model:
    return Model({0: [call(), answer("3")], 1: [answer("4")]}, **options)


async def statuses(world: World) -> list[TaskStatus]:
    return [task.status for task in await world.store.find("task")]


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_it_plays_the_whole_stream_and_returns(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push([*tasks(5), a_task("e", num_slots=1, split=Split.EVAL)])
        sampler = world.sampler(num_episodes=6)
        await sampler.run()
        assert sampler.num_groups == 6
        assert await statuses(world) == [TaskStatus.COMPLETED] * 6
        assert len(await world.rows()) == 10
        assert await world.store.workers() == []

    in_world(tmp_path, scenario, right_and_wrong())


def test_it_waits_for_tasks_while_the_stream_is_open(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        sampler = world.sampler(num_episodes=4)
        running = asyncio.create_task(sampler.run())
        await asyncio.sleep(0.15)
        assert not running.done()
        await world.push(tasks(2))
        await running
        assert sampler.num_groups == 2

    in_world(tmp_path, scenario, right_and_wrong())


def test_held_out_tasks_come_first(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push([*tasks(2), a_task("e", num_slots=1, split=Split.EVAL)])
        await world.sampler().run()
        assert [record.task.split("/")[1] for record in world.told] == ["eval", "train", "train", "train", "train"]

    in_world(tmp_path, scenario, right_and_wrong())


def test_it_runs_no_further_ahead_than_it_is_admitted(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(4))
        sampler = world.sampler(num_episodes=8, admission=Admission(groups_per_step=1, max_staleness=0))
        running = asyncio.create_task(sampler.run())
        for step in range(4):
            await asyncio.sleep(0.1)
            assert sampler.num_groups == step
            await world.store.publish_version(WeightVersion(version=step, step=step, parent=step - 1 if step else None))
            await until(lambda step=step: sampler.num_groups == step + 1)
        await running

    in_world(tmp_path, scenario, right_and_wrong())


def test_idle_workers_ask_the_store_as_one(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        asked = 0
        claim = world.store.claim

        async def counted(*args: Any, **options: Any) -> Any:
            nonlocal asked
            asked += 1
            return await claim(*args, **options)

        world.store.claim = counted  # type: ignore[method-assign]
        sampler = world.sampler(num_episodes=100)
        running = asyncio.create_task(sampler.run())
        await asyncio.sleep(0.5)
        assert asked < 65
        await world.push(tasks(1))
        await running

    in_world(tmp_path, scenario, right_and_wrong())


def test_many_workers_play_at_once(tmp_path: Path) -> None:
    meeting = asyncio.Barrier(6)

    async def scenario(world: World) -> None:
        await world.push(tasks(6, num_slots=1))
        await world.sampler(num_episodes=12).run()
        assert len(world.told) == 6

    in_world(tmp_path, scenario, Model([meeting.wait]))


def test_an_outage_of_the_engines_ends_it_and_gives_its_groups_back_unjudged(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(3))
        with pytest.raises(EngineOutage, match="nobody there"):
            await world.sampler(num_episodes=6).run()
        assert await world.records() == []
        assert await statuses(world) == [TaskStatus.CREATED] * 3
        again = await world.store.claim("next", splits=(Split.TRAIN,))
        assert again is not None
        assert again.finished == ()

    in_world(tmp_path, scenario, Model({0: [HANG().wait], 1: [EngineOutage("nobody there")]}))


def test_an_outage_later_keeps_what_was_finished(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(1))
        with pytest.raises(EngineOutage):
            await world.sampler().run()
        claim = await world.store.claim("next", splits=(Split.TRAIN,))
        assert claim is not None
        assert [(record.slot, record.status) for record in claim.finished] == [(0, RecordStatus.SCORED)]

    async def later() -> None:
        await asyncio.sleep(0.2)
        raise EngineOutage("nobody there")

    in_world(tmp_path, scenario, Model({0: [answer("3")], 1: [later]}))


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_tool_server_that_is_gone_for_good_ends_it_with_the_reason_and_judges_nobody(
    tmp_path: Path, attempts: int
) -> None:
    def fail_for_good(arguments: dict) -> str:
        tools.failure = "server 'maps' gave up after 3 restarts"
        tools.failed.set()
        raise GatewayError("server 'maps' is gone")

    async def scenario(world: World) -> None:
        await world.push(tasks(2))
        with pytest.raises(GatewayError, match="'maps' gave up after 3 restarts"):
            await world.sampler(num_episodes=4).run()
        assert [record.status for record in await world.records()] == []
        assert await statuses(world) == [TaskStatus.CREATED] * 2

    tools = ScriptedToolset({"maps": ScriptedTool(reply=fail_for_good)})
    in_world(tmp_path, scenario, Model([call("maps", "{}")]), tools=tools, max_attempts=attempts)


def test_a_tool_server_that_fails_while_nobody_calls_it_ends_it_too(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(1))
        running = asyncio.create_task(world.sampler().run())
        await until(lambda: world.engine.prompts)
        world.toolset.failure = "gave up"
        world.toolset.failed.set()
        with pytest.raises(GatewayError, match="gave up"):
            await running
        assert await statuses(world) == [TaskStatus.CREATED]

    engine = right_and_wrong()
    engine.faults.hang = True
    in_world(tmp_path, scenario, engine)


def test_stop_lets_running_groups_finish_and_claims_no_more(tmp_path: Path) -> None:
    go_on = asyncio.Event()

    async def scenario(world: World) -> None:
        await world.push(tasks(3, num_slots=1))
        sampler = world.sampler(num_episodes=1)
        running = asyncio.create_task(sampler.run())
        await until(lambda: engine.asked)
        sampler.stop(drain_seconds=20)
        await asyncio.sleep(0.05)
        assert not running.done()
        go_on.set()
        await running
        assert sampler.num_groups == 1
        assert await statuses(world) == [TaskStatus.ABANDONED, TaskStatus.CREATED, TaskStatus.CREATED]

    engine = Model([go_on.wait])
    in_world(tmp_path, scenario, engine)


def test_groups_that_do_not_drain_in_time_are_given_back(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(1))
        sampler = world.sampler()
        running = asyncio.create_task(sampler.run())
        await until(lambda: world.told)
        sampler.stop(drain_seconds=0.1)
        await asyncio.wait_for(running, 5)
        assert sampler.num_groups == 0
        assert await statuses(world) == [TaskStatus.CREATED]
        claim = await world.store.claim("next", splits=(Split.TRAIN,))
        assert claim is not None
        assert [record.slot for record in claim.finished] == [0]

    in_world(tmp_path, scenario, Model({0: [answer("3")], 1: [call(), HANG().wait]}))


def test_cancelling_it_gives_the_groups_back_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(2))
        running = asyncio.create_task(world.sampler(num_episodes=4).run())
        await until(lambda: len(world.told) == 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await statuses(world) == [TaskStatus.CREATED] * 2
        del running
        gc.collect()
        assert caplog.text == ""

    in_world(tmp_path, scenario, Model({0: [answer("3")], 1: [HANG().wait]}))


def test_a_lost_lease_costs_one_group_and_the_worker_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    go_on = asyncio.Event()

    async def scenario(world: World) -> None:
        await world.push(tasks(2))
        sampler = world.sampler()
        running = asyncio.create_task(sampler.run())
        await until(lambda: world.told)
        await world.store.leave(WORKER.id)
        await world.store.heartbeat(Worker(id="other", kind="sampler", host="h", pid=2))
        stolen = await world.store.claim("other", splits=(Split.TRAIN,))
        assert stolen is not None
        go_on.set()
        await until(lambda: sampler.num_groups == 1)
        assert "another sampler has this group now" in caplog.text
        await world.runner.run(stolen)
        await running
        assert sampler.num_groups == 1
        assert len(await world.rows()) == 4

    in_world(tmp_path, scenario, Model({0: [answer("4")], 1: [go_on.wait]}))


def test_a_store_that_breaks_ends_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(1))

        async def full(*args: object) -> None:
            raise StoreError("disk full")

        world.store.append_turn = full  # type: ignore[method-assign]
        with pytest.raises(StoreError, match="disk full"):
            await world.sampler().run()

    in_world(tmp_path, scenario, right_and_wrong())


def test_a_task_with_tools_that_do_not_exist_ends_it_and_names_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(1, tools=("nope",)))
        with pytest.raises(ConfigError, match="'nope'"):
            await world.sampler().run()

    in_world(tmp_path, scenario, right_and_wrong())


def test_the_stream_has_ended_once_nothing_can_come_and_nothing_is_left(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        assert not await stream_ended(world.store)
        await world.push(tasks(1))
        assert not await stream_ended(world.store)
        claim = await world.store.claim(WORKER.id, splits=(Split.TRAIN,))
        assert claim is not None
        assert not await stream_ended(world.store)
        await world.runner.run(claim)
        assert await stream_ended(world.store)

    in_world(tmp_path, scenario, right_and_wrong())


def test_engines_are_awaited_and_their_absence_says_what_to_do(tmp_path: Path) -> None:
    async def put(world: World, url: str, status: ServiceStatus) -> None:
        await world.store.put_service(InferenceService(url=url, kind="scripted", model="m", status=status))

    async def scenario(world: World) -> Sequence[str]:
        await put(world, "http://down", ServiceStatus.DOWN)
        with pytest.raises(WaitTimeout, match=r"agentrl serve.*--engine_url"):
            await wait_for_service(world.store, timeout_seconds=0.15)
        waiting = asyncio.create_task(wait_for_service(world.store, timeout_seconds=10))
        await asyncio.sleep(0.05)
        await put(world, "http://up", ServiceStatus.UP)
        return await waiting

    assert in_world(tmp_path, scenario, right_and_wrong()) == ["http://up"]
