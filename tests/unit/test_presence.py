"""What processes of a run tell of themselves: waits, deadlines, claims, services, and how the run ended."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, opened, questions, with_store

from agentrl.cli.feed import training_tasks
from agentrl.cli.presence import RUN_END, Heart, conducting, this_worker
from agentrl.cli.sample import build_sampler
from agentrl.cli.serve import Registration, serve_run
from agentrl.config import AlgoOptions, OptimOptions
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineError, Interrupted, ProcessDied
from agentrl.rollout.sampler import wait_for_service
from agentrl.rollout.waiting import awaited
from agentrl.store import Admission, BlockingStore, Store, open_store
from agentrl.telemetry import Telemetry
from agentrl.tools.scripted import ScriptedToolset
from agentrl.trainer.announce import Announced
from agentrl.trainer.progress import Progress
from agentrl.trainer.source import SourceOptions, StoreBatchSource
from agentrl.types import ServiceStatus, Split, WeightVersion, Worker
from agentrl.weights.base import Publication

PACE = Admission(groups_per_step=1, max_staleness=0)


async def seen(store: Store, kind: str) -> Worker:
    (found,) = [worker for worker in await store.workers() if worker.kind == kind]
    return found


async def until(condition: Callable[[], Any]) -> Any:
    for _ in range(1000):
        if found := await condition():
            return found
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


def test_an_idle_sampler_says_from_whom_its_next_group_will_come(tmp_path: Path) -> None:
    config = configured(tmp_path)

    async def scenario(store: Store) -> None:
        assert await awaited(store, PACE) == "tasks to be pushed"
        await store.add_tasks(training_tasks(config, questions(3)))
        assert await awaited(store, PACE) == "the trainer to publish the first weights"
        await store.publish_version(WeightVersion(version=0, step=0, parent=None))
        await store.heartbeat(Worker(id="w", kind="sampler", host="h", pid=1))
        assert await store.claim("w", splits=(Split.TRAIN,), admission=PACE)
        assert await awaited(store, PACE) == "the trainer to publish step 1 (max_staleness 0)"
        assert await awaited(store, None) == "other samplers to finish their groups"

    with_store(config, scenario)


def test_a_sampler_beats_what_it_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.rollout.sampler.HEARTBEAT_SECONDS", 0.02)
    config = configured(tmp_path)

    async def scenario(store: Store) -> None:
        worker = this_worker("sampler")
        engine = ScriptedEngine(lambda *_: [1], version=0)
        sampler = build_sampler(config, store, engine, ScriptedToolset({}), Telemetry([]), worker)
        running = asyncio.create_task(sampler.run())

        async def waits() -> bool:
            return [worker.waiting_for for worker in await store.workers()] == ["tasks to be pushed"]

        await until(waits)
        sampler.stop(drain_seconds=0.0)
        await running
        assert await store.workers() == []

    with_store(config, scenario)


def test_a_heart_beats_what_is_awaited_and_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.presence.HEARTBEAT_SECONDS", 0.02)

    async def scenario(store: Store) -> None:
        heart = Heart(store, this_worker("sampler"))
        await heart.start()
        first = await seen(store, "sampler")
        assert (first.pid, first.waiting_for, first.deadline) == (os.getpid(), "", None)
        heart.waits_for("an engine", seconds=60)

        async def waits() -> bool:
            return (await seen(store, "sampler")).waiting_for == "an engine"

        await until(waits)
        deadline = (await seen(store, "sampler")).deadline
        assert deadline is not None
        assert 0 < deadline - time.time() <= 60
        await heart.stop()
        last = (await seen(store, "sampler")).beat
        await asyncio.sleep(0.1)
        assert (await seen(store, "sampler")).beat == last

    with_store(configured(tmp_path), scenario)


@pytest.mark.parametrize(
    ("error", "outcome", "message"),
    [
        (None, "finished", ""),
        (Interrupted("stopped early"), "interrupted", "stopped early"),
        (ProcessDied("the engine process died"), "failed", "ProcessDied: the engine process died"),
    ],
)
def test_how_a_run_ended_is_kept(tmp_path: Path, error: Exception | None, outcome: str, message: str) -> None:
    async def scenario(store: Store) -> None:
        await store.set_state(RUN_END, {"outcome": "failed", "message": "of an earlier start", "at": 0.0})
        try:
            async with conducting(store):
                assert await store.get_state(RUN_END) is None
                assert (await seen(store, "run")).alive
                if error is not None:
                    raise error
        except type(error or AssertionError()):
            pass
        end = await store.get_state(RUN_END)
        assert end is not None
        assert (end["outcome"], end["message"]) == (outcome, message)
        assert await store.workers() == []

    with_store(configured(tmp_path), scenario)


def test_an_engine_keeps_its_service_fresh_and_leaves_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.serve.HEARTBEAT_SECONDS", 0.02)
    config = configured(tmp_path, "--engine=scripted", "--engine_script=script:reply")

    async def scenario() -> None:
        async with opened(config) as store:
            serving = asyncio.create_task(serve_run(config))
            await wait_for_service(store, timeout_seconds=20)
            first = (await store.services())[0].beat

            async def beaten() -> bool:
                (service,) = await store.services()
                return service.beat > first and service.age_seconds < 30

            await until(beaten)
            assert (await seen(store, "engine")).waiting_for == "the trainer to publish the first weights"
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(serving, 20)
            assert [service.status for service in await store.services()] == [ServiceStatus.DOWN]
            assert await store.workers() == []

    asyncio.run(scenario())


def test_an_engine_that_broke_says_so_in_its_service_and_does_not_leave(tmp_path: Path) -> None:
    config = configured(tmp_path)

    class Broken(ScriptedEngine):
        async def health(self) -> Any:
            return replace(await super().health(), running=3, detail="failed: out of memory")

    async def scenario(store: Store) -> None:
        registration = Registration(store=store, engine=Broken(lambda *_: [1], version=4), config=config)
        await store.heartbeat(registration.worker)
        await registration.ready("http://127.0.0.1:1")
        (service,) = await store.services()
        assert (service.running, service.policy_version, service.last_error) == (3, 4, "")
        with pytest.raises(EngineError):
            await registration.beat(asyncio.Event())
        await registration.leave()
        (service,) = await store.services()
        assert (service.status, service.last_error) == (ServiceStatus.DOWN, "failed: out of memory")
        assert [worker.kind for worker in await store.workers()] == ["engine"]

    with_store(config, scenario)


def test_a_publication_is_announced_while_it_lasts() -> None:
    told: list[tuple[str, float | None]] = []
    during: list[Any] = []

    class Publisher:
        def publish(self, tensors: Any, *, version: int, canary: Any) -> Publication:
            during.append(told[-1])
            return Publication(version=version, tensor_hash="", confirmations=())

        def close(self) -> None:
            during.append("closed")

    publisher = Announced(Publisher(), lambda *what: told.append(what), timeout_seconds=120.0)
    publisher.publish({}, version=7, canary=None)
    publisher.close()
    assert during == [("the engines to serve version 7", 120.0), "closed"]
    assert told[-1] == ("", None)


def test_a_trainer_says_for_which_groups_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.trainer.source.HEARTBEAT_SECONDS", 0.02)
    stop = threading.Event()
    options = SourceOptions(
        groups_per_step=4, algo=AlgoOptions(), optim=OptimOptions(), max_tokens_per_microbatch=80, in_order=True
    )
    with BlockingStore(open_store(f"sqlite:///{tmp_path / 'run.db'}", run="r")) as blocking:
        source = StoreBatchSource(blocking, options, stop=stop)
        blocking.call(blocking.store.publish_version, WeightVersion(version=0, step=0, parent=None))
        waiting = threading.Thread(target=lambda: source.next(Progress()))
        waiting.start()
        try:
            for _ in range(500):
                worker = blocking.call(seen, blocking.store, "trainer")
                if worker.waiting_for:
                    break
                time.sleep(0.01)
            assert worker.waiting_for == "samplers to finish 4 groups for step 1, in order"
            assert worker.deadline is not None
            assert 0 < worker.deadline - time.time() <= options.wait_timeout_seconds
        finally:
            stop.set()
            waiting.join()
            source.close()
        assert blocking.call(blocking.store.workers) == []
