"""Who shares the engines, as the store says it, and which engines get requests."""

import asyncio
from pathlib import Path

import pytest

from agentrl.engine.pool import EnginePool
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineOutage
from agentrl.rollout.fleet import FleetWatch
from agentrl.rollout.scheduler import Fleet
from agentrl.store import open_store
from agentrl.types import InferenceService, ServiceStatus, Worker


def connected(url: str) -> ScriptedEngine:
    return ScriptedEngine(lambda *_: (), version=0)


def sampler(name: str) -> Worker:
    return Worker(id=name, kind="sampler", host="h", pid=0)


@pytest.mark.parametrize("gone", [ServiceStatus.DOWN, ServiceStatus.DRAINING])
def test_engines_and_samplers_are_followed_as_they_come_and_go(tmp_path: Path, gone: ServiceStatus) -> None:
    async def scenario() -> None:
        store = open_store(f"sqlite:///{tmp_path / 'run.db'}", run="r")
        await store.open()

        async def put(url: str, status: ServiceStatus = ServiceStatus.UP) -> None:
            await store.put_service(InferenceService(url=url, kind="scripted", model="m", status=status))

        pool = EnginePool(["http://a"], connect=connected, recovery_seconds=0.1)
        watch = FleetWatch(store, sampler("me"), pool, registered=True)
        try:
            await put("http://a")
            await put("http://b")
            await store.heartbeat(sampler("me"))
            await store.heartbeat(sampler("first"))
            await store.heartbeat(Worker(id="a trainer", kind="trainer", host="h", pid=0))
            await watch.look()
            assert watch.seen() == Fleet(num_engines=2, num_samplers=2, rank=1)
            await put("http://a", gone)
            await store.leave("first")
            await watch.look()
            assert watch.seen() == Fleet(num_engines=1, num_samplers=1, rank=0)
            await put("http://b", gone)
            await watch.look()
            assert watch.seen().num_engines == 0
            await asyncio.sleep(0.15)
            with pytest.raises(EngineOutage, match="http://b is not UP"):
                await watch.look()
            await put("http://a")
            await watch.look()
            assert watch.seen().num_engines == 1
        finally:
            await pool.close()
            await store.close()

    asyncio.run(scenario())
