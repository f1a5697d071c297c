"""One sampler process, a thousand live episodes: nobody is lost, and the store is asked little."""

import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rollout_help import Model, World, a_task, answer, call, in_world

from agentrl.engine.scripted import Faults
from agentrl.store import Store
from agentrl.tools.scripted import ScriptedTool
from agentrl.types import Completion, Outcome, RecordStatus, TaskStatus

NUM_GROUPS, NUM_SLOTS, NUM_TURNS = 125, 8, 4
LATENCY_SECONDS = 0.02


class CountingStore:
    """Counts round trips by verb."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.trips: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def counted(*args: Any, **options: Any) -> Any:
            self.trips[name] += 1
            return found(*args, **options)

        return counted


class CrowdedModel(Model):
    """Knows how many episodes have begun and not ended at the same time."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.live: set[str] = set()
        self.most_live = 0

    async def generate(self, prompt_ids: Any, *, session: str, **options: Any) -> Completion:
        self.live.add(session)
        self.most_live = max(self.most_live, len(self.live))
        completion = await super().generate(prompt_ids, session=session, **options)
        if self._num_said[session] == NUM_TURNS:
            self.live.discard(session)
        return completion


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


@pytest.mark.ci
def test_a_thousand_episodes_from_one_sampler_process(tmp_path: Path) -> None:
    counting: list[CountingStore] = []

    def count(store: Store) -> Any:
        counting.append(CountingStore(store))
        return counting[0]

    async def scenario(world: World) -> None:
        await world.push([a_task(f"t{n}", num_slots=NUM_SLOTS) for n in range(NUM_GROUPS)])
        sampler = world.sampler(num_episodes=NUM_GROUPS * NUM_SLOTS)
        begun, memory = time.process_time(), peak_megabytes()
        await sampler.run()
        seconds = time.process_time() - begun
        records = await world.records()
        num_turns = await world.store.count("turn")
        assert sampler.num_groups == NUM_GROUPS
        assert len(records) == NUM_GROUPS * NUM_SLOTS
        assert {(record.status, record.outcome) for record in records} == {(RecordStatus.SCORED, Outcome.ANSWERED)}
        assert {record.attempt for record in records} == {0}
        assert num_turns == len(records) * NUM_TURNS
        assert await world.store.count("task", status=TaskStatus.COMPLETED) == NUM_GROUPS
        assert await world.store.count("row", status="ready") == len(records)
        assert engine.most_live >= 0.95 * len(records)
        assert sum(counting[0].trips.values()) <= 3 * num_turns, counting[0].trips
        assert counting[0].trips["append_turn"] == num_turns
        assert seconds < 30
        assert peak_megabytes() - memory < 300

    talk = [call(arguments=f'{{"expression": "{n}+1"}}') for n in range(NUM_TURNS - 1)]
    engine = CrowdedModel(
        {slot: [*talk, answer("3" if slot % 2 else "4")] for slot in range(NUM_SLOTS)},
        faults=Faults(seconds_per_token=LATENCY_SECONDS / 20),
    )
    late = ScriptedTool(
        reply=lambda arguments: arguments["expression"],
        parameters={"type": "object", "properties": {"expression": {"type": "string"}}},
        latency_seconds=LATENCY_SECONDS,
    )
    in_world(
        tmp_path,
        scenario,
        engine,
        tools={"calculator": late},
        store=count,
        concurrency=NUM_GROUPS * NUM_SLOTS,
        max_turns=NUM_TURNS,
    )
