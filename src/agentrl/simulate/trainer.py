"""The trainer of a simulation: takes the next step's groups, trains for a while, publishes, acknowledges.

Consumes finished groups, waits for samplers to finish them, and is unblocked by them; every publication lets samplers
start new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agentrl.engine.base import Engine, WeightSource
from agentrl.simulate.scenario import Scenario
from agentrl.store.base import Store, Taken
from agentrl.types import WeightVersion

POLL_SECONDS = 0.2
"""How often a trainer that waits asks again, as in a run."""


async def train(
    store: Store, engines: Sequence[Engine], scenario: Scenario, on_step: Callable[[Taken, float], None]
) -> None:
    """Until ``scenario.steps`` are done or the stream has ended. ``on_step`` hears of a step when its weights are
    published, and how many seconds its groups were waited for."""
    await publish(store, engines, 0, seconds=0.0)
    for step in range(1, scenario.steps + 1):
        begun = now()
        taken = await wait_for_groups(store, scenario, step)
        if not taken.rows:
            return
        waited = now() - begun
        await asyncio.sleep(scenario.train_seconds)
        await publish(store, engines, step, seconds=scenario.publish_seconds)
        await store.ack(step)
        on_step(taken, waited)


async def wait_for_groups(store: Store, scenario: Scenario, step: int) -> Taken:
    rule = scenario.rules.take(step)
    while (taken := await store.take(rule)) is None:
        await asyncio.sleep(POLL_SECONDS)
    return taken


async def publish(store: Store, engines: Sequence[Engine], step: int, *, seconds: float) -> None:
    """Engines have the weights before the store says so."""
    await asyncio.sleep(seconds)
    source = WeightSource(path="")
    await asyncio.gather(*(engine.update_weights(step, source) for engine in engines))
    await store.publish_version(WeightVersion(version=step, step=step, parent=step - 1 if step else None))


def now() -> float:
    return asyncio.get_running_loop().time()
