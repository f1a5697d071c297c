"""``simulate``: the samplers, the store and a trainer of a run on simulated time, on engines and tools that only wait.

Samplers, their pace, the routing of requests and the store's statements are those of a run; a simulation of the same
scenario gives the same events every time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from agentrl.chat.base import Renderer
from agentrl.config import AlgoOptions, RolloutOptions
from agentrl.engine.pool import EnginePool
from agentrl.rollout.fleet import FleetWatch
from agentrl.rollout.pace import Pace
from agentrl.rollout.sampler import MCPSampler
from agentrl.rollout.scheduler import SamplingScheduler
from agentrl.simulate.clock import run_simulated
from agentrl.simulate.figures import Figures, Gauge
from agentrl.simulate.fleet import SimulatedEngine
from agentrl.simulate.journal import Event, JournalStore
from agentrl.simulate.runner import Played, SimulatedRunner
from agentrl.simulate.scenario import Scenario
from agentrl.simulate.trainer import now, train
from agentrl.store.base import Store, Taken
from agentrl.tools.scripted import ScriptedToolset
from agentrl.types import RecordStatus, RowStatus, Split, Task, TaskStatus, Worker

RUN = "simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    figures: Figures
    events: Sequence[Event]


def simulate(scenario: Scenario) -> Simulated:
    return run_simulated(play(scenario))


async def play(scenario: Scenario) -> Simulated:
    """On the running loop, which has to be a simulated one."""
    store = JournalStore(run=RUN, clock=asyncio.get_running_loop().time)
    await store.open()
    try:
        await push_tasks(store, scenario)
        figures = await sample_and_train(store, scenario)
        return Simulated(figures=figures, events=store.events)
    finally:
        await store.close()


async def push_tasks(store: Store, scenario: Scenario) -> None:
    num_slots = scenario.rules.num_generations
    tasks = [Task(task_id=f"t{index}", query="", num_slots=num_slots) for index in range(scenario.pushed_tasks)]
    await store.add_tasks(tasks)
    await store.end_stream(Split.TRAIN)
    await store.end_stream(Split.EVAL)


async def sample_and_train(store: Store, scenario: Scenario) -> Figures:
    fleet = scenario.fleet
    engines = {
        f"simulated://{index}": SimulatedEngine(num_slots=fleet.engine_slots, tokens_per_second=fleet.tokens_per_second)
        for index in range(fleet.engines)
    }
    played: dict[str, Played] = {}
    gauge = Gauge(scenario, list(engines.values()), played)

    def on_step(taken: Taken, waited: float) -> None:
        gauge.step(taken, waited, now())

    samplers = [build_sampler(store, scenario, engines, played, index) for index in range(fleet.samplers)]
    sampling = [asyncio.create_task(sampler.run()) for sampler in samplers]
    training = asyncio.create_task(train(store, list(engines.values()), scenario, on_step))
    try:
        await until_trained(training, sampling)
        return gauge.figures(await store.queue(Split.TRAIN), await lost_records(store), now())
    finally:
        for task in (training, *sampling):
            task.cancel()
        await asyncio.gather(training, *sampling, return_exceptions=True)


async def until_trained(training: asyncio.Task[None], sampling: Sequence[asyncio.Task[None]]) -> None:
    """A sampler that breaks ends the wait; one whose stream has ended does not."""
    running = {training, *sampling}
    while training in running:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def lost_records(store: Store) -> list[str]:
    """Episodes that ended and will not be trained, for a reason that has to do with how long they took."""
    stale = [row.id for row in await store.find("row", status=RowStatus.DROPPED)]
    late = [
        record.id
        for status in (RecordStatus.ABANDONED, RecordStatus.FAILED)
        for record in await store.find("record", status=status)
    ]
    left_alone = [
        record.id
        for task in await store.find("task", status=TaskStatus.ABANDONED, reason="too_few_valid")
        for record in await store.find("record", task=task.id, status=RecordStatus.SCORED)
    ]
    return [*stale, *late, *left_alone]


def build_sampler(
    store: Store,
    scenario: Scenario,
    engines: dict[str, SimulatedEngine],
    played: dict[str, Played],
    index: int,
) -> MCPSampler:
    rules, fleet = scenario.rules, scenario.fleet
    pool = EnginePool(list(engines), connect=engines.__getitem__)
    runner = SimulatedRunner(
        store=store,
        engine=pool,
        renderer=cast(Renderer, None),  # nothing is said, so nothing is rendered
        toolset=ScriptedToolset({}),
        rollout_options=RolloutOptions(
            num_generations=rules.num_generations,
            group_deadline=rules.group_deadline,
            episode_timeout=rules.episode_timeout,
        ),
        algo_options=AlgoOptions(),
        pace=Pace(SamplingScheduler(target_concurrency=fleet.requests_per_engine, max_episodes=fleet.max_episodes)),
        workload=scenario.workload,
        played=played,
    )
    worker = Worker(id=f"sampler/{index}", kind="sampler", host="simulated", pid=index + 1)
    return MCPSampler(
        runner, worker, admission=rules.admission(), fleet=FleetWatch(store, worker, pool, registered=False)
    )
