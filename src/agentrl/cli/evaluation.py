"""Held-out evaluation while training goes on: rounds are pushed as versions are published, and summed up when played.

A round is the held-out tasks at one published version (their ``epoch``), so that a restored run, whose versions have
new numbers, evaluates again, and a finished round is never played twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from agentrl.cli.feed import evaluation_tasks
from agentrl.config import RunConfig
from agentrl.store import Store
from agentrl.telemetry import Telemetry
from agentrl.types import Record, RecordStatus, Split, Task, TaskStatus, WeightVersion

POLL_SECONDS = 0.1
FIRST_VERSION = WeightVersion(version=0, step=0, parent=None)
EVALUATIONS = "run/evaluations"
"""State key: finished rounds by step, of all starts of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One round. ``success`` is the mean score of the records that could be scored."""

    step: int
    records: tuple[Record, ...]

    @property
    def success(self) -> float:
        scores = [record.score for record in self.records if record.score is not None]
        return sum(scores) / len(scores) if scores else 0.0

    @property
    def num_unscored(self) -> int:
        return sum(record.score is None for record in self.records)

    def told(self, version: int) -> dict[str, float]:
        """What others are told of the round."""
        return {
            "step": self.step,
            "version": version,
            "success": self.success,
            "records": len(self.records),
            "unscored": self.num_unscored,
        }


class EvaluationRounds:
    """Rounds of one run; finished ones are events of ``telemetry`` and kept in ``finished`` by step."""

    def __init__(self, store: Store, config: RunConfig, held_out: Sequence[Task], telemetry: Telemetry) -> None:
        self._store = store
        self._config = config
        self._held_out = held_out
        self._telemetry = telemetry
        self._open: dict[int, WeightVersion] = {}
        self._last_due = 0
        self.finished: dict[int, Evaluation] = {}

    async def tick(self) -> None:
        """Push the round that fell due, take in those that ended. A step passed over between two looks is counted."""
        every = self._config.checkpoint.eval_steps
        latest = await self._store.latest_version()
        if every and latest is not None and latest.step // every > self._last_due:
            missed = range(self._last_due + 1, latest.step // every)
            for due in missed:
                self._telemetry.event("evaluation_skipped", step=due * every)
            self._last_due = latest.step // every
            await self.push(latest)
        for version in list(self._open.values()):
            await self._take_in(version)

    async def push(self, version: WeightVersion) -> None:
        """Nothing happens to a round that is there already."""
        if version.step in self.finished:
            return
        if self._held_out:
            await self._store.add_tasks(evaluation_tasks(self._config, self._held_out, version.version))
            self._open[version.version] = version

    async def play(self, version: WeightVersion) -> Evaluation | None:
        """Push a round and wait for it, and for those that are still open; None without held-out tasks."""
        await self.push(version)
        while self._open:
            await self.tick()
            await asyncio.sleep(POLL_SECONDS)
        return self.finished.get(version.step)

    async def until(self, event: Awaitable[None]) -> None:
        """Tick until ``event`` happens."""
        waiting = asyncio.ensure_future(event)
        try:
            while not waiting.done():
                await self.tick()
                await asyncio.wait({waiting}, timeout=POLL_SECONDS)
            waiting.result()
        finally:
            waiting.cancel()

    async def _take_in(self, version: WeightVersion) -> None:
        for status in (TaskStatus.CREATED, TaskStatus.RUNNING):
            if await self._store.count("task", split=Split.EVAL, epoch=version.version, status=status):
                return
        evaluation = Evaluation(step=version.step, records=tuple(await self._records(version)))
        del self._open[version.version]
        self.finished[version.step] = evaluation
        told = evaluation.told(version.version)
        self._telemetry.event("evaluation", **told)
        known = await self._store.get_state(EVALUATIONS) or {}
        await self._store.set_state(EVALUATIONS, known | {str(version.step): told})

    async def _records(self, version: WeightVersion) -> list[Record]:
        records: list[Record] = []
        for task in await self._store.find("task", split=Split.EVAL, epoch=version.version):
            found: list[Record] = await self._store.find("record", task=task.id)
            newest = {record.slot: record for record in found if record.status is not RecordStatus.EXPIRED}
            records += newest.values()
        return records


async def evaluations(store: Store) -> list[dict[str, float]]:
    """Finished rounds by step; of a step that was evaluated again after a restore the newest."""
    known = await store.get_state(EVALUATIONS) or {}
    return sorted(known.values(), key=lambda told: told["step"])
