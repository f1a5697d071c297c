"""What samplers of one run, and of two, get of the engines: real samplers on a real store, at engines that answer only
when they are told to, so that what is in flight stands still and can be counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli_help import SUM, Speaker, answers_by_slot, configured, opened, questions

from agentrl.cli.feed import training_tasks
from agentrl.cli.sample import build_sampler
from agentrl.config import RunConfig
from agentrl.rollout.sampler import MCPSampler
from agentrl.rollout.scheduler import SamplingScheduler
from agentrl.store import Store
from agentrl.telemetry import Telemetry
from agentrl.tools.scripted import ScriptedToolset
from agentrl.types import WeightVersion, Worker

FLAGS = ("--groups_per_step=1000", "--target_concurrency=7")
SETTLED_SECONDS = 0.3


class Held(Speaker):
    """Answers nothing until ``answer_all``, and then what it holds."""

    def __init__(self) -> None:
        super().__init__(answers_by_slot)
        self._answered = asyncio.Event()

    async def generate(self, prompt_ids: Sequence[int], **request: Any) -> Any:
        answered = self._answered
        self.now += 1
        try:
            await answered.wait()
        finally:
            self.now -= 1
        return await super().generate(prompt_ids, **request)

    def answer_all(self) -> None:
        self._answered.set()
        self._answered = asyncio.Event()


@dataclass(slots=True, kw_only=True)
class Playing:
    sampler: MCPSampler
    engine: Held
    scheduler: SamplingScheduler
    running: asyncio.Task[None] = field(init=False)

    def start(self) -> Playing:
        self.running = asyncio.create_task(self.sampler.run())
        return self

    @property
    def fleet_size(self) -> int:
        """Samplers that share the engines, as this one knows it."""
        return self.scheduler.fleet.num_samplers

    async def leave(self) -> None:
        self.sampler.stop(drain_seconds=0.0)
        await self.running


@asynccontextmanager
async def run_of(config: RunConfig, num_tasks: int = 60) -> AsyncIterator[Store]:
    async with opened(config) as store:
        await store.publish_version(WeightVersion(version=0, step=0, parent=None))
        await store.add_tasks(training_tasks(config, questions(num_tasks)))
        yield store


async def join(config: RunConfig, store: Store, name: str) -> Playing:
    """Known to the others before any of them looks."""
    toolset = ScriptedToolset({"sum": SUM})
    await toolset.open()
    worker, engine = Worker(id=name, kind="sampler", host="h", pid=1), Held()
    await store.heartbeat(worker)
    sampler = build_sampler(config, store, engine, toolset, Telemetry([]), worker)
    return Playing(sampler=sampler, engine=engine, scheduler=sampler._runner.pace.scheduler)


async def in_flight(playing: Sequence[Playing], expected: Sequence[int]) -> None:
    """They come to ``expected`` requests and stay there."""

    def seen() -> list[int]:
        return [each.engine.now for each in playing]

    await until(lambda: seen() == list(expected), lambda: f"{seen()} instead of {expected}")
    await asyncio.sleep(SETTLED_SECONDS)
    assert seen() == list(expected)


async def until(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(30):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what()) from None


async def end(*playing: Playing) -> None:
    await asyncio.gather(*(each.leave() for each in playing))


def test_samplers_share_the_target_exactly_as_they_come_and_go(tmp_path: Path) -> None:
    config = configured(tmp_path, *FLAGS)

    async def scenario() -> None:
        async with run_of(config) as store:
            first, second = await join(config, store, "a"), await join(config, store, "b")
            first.start()
            second.start()
            await in_flight([first, second], [4, 3])
            await second.leave()
            await in_flight([first], [7])
            third = (await join(config, store, "c")).start()
            await in_flight([first, third], [7, 3])
            await until(lambda: first.fleet_size == 2, lambda: "the first sampler knows of no other")
            first.engine.answer_all()
            await in_flight([first, third], [4, 3])
            await end(first, third)

    asyncio.run(scenario())


def test_the_bound_of_a_process_holds_whatever_its_share_is(tmp_path: Path) -> None:
    config = configured(tmp_path, *FLAGS)
    bounded = configured(tmp_path, *FLAGS, "--max_concurrent_samples_per_process=2")

    async def scenario() -> None:
        async with run_of(config) as store:
            first, second = await join(config, store, "a"), await join(bounded, store, "b")
            await in_flight([first.start(), second.start()], [4, 2])
            second.engine.answer_all()
            await in_flight([first, second], [4, 2])
            await end(first, second)

    asyncio.run(scenario())


def test_two_runs_at_one_engine_have_a_target_each(tmp_path: Path) -> None:
    """Each knows only its own samplers: their targets add up."""
    configs = [configured(tmp_path, *FLAGS, f"--run_name=r{number}") for number in range(2)]

    async def scenario() -> None:
        async with run_of(configs[0]) as one, run_of(configs[1]) as two:
            playing = [await join(configs[0], one, "a"), await join(configs[1], two, "b")]
            await in_flight([each.start() for each in playing], [7, 7])
            await end(*playing)

    asyncio.run(scenario())


def test_a_sampler_fills_a_large_share_before_the_first_answer(tmp_path: Path) -> None:
    """The whole gap is claimed at once: no start waits for another, or for an episode to end."""
    config = configured(tmp_path, *FLAGS, "--target_concurrency=256", "--num_generations=4")

    async def scenario() -> None:
        async with run_of(config, num_tasks=100) as store:
            claims = 0
            claim = store.claim

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal claims
                claims += 1
                return await claim(*args, **options)

            store.claim = counted  # type: ignore[method-assign]
            sampler = (await join(config, store, "a")).start()
            await in_flight([sampler], [256])
            assert claims == 64, "claims that were refused, or groups that were not wanted"
            await end(sampler)

    asyncio.run(scenario())
