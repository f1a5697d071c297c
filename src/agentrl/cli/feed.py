"""Task files into the store: training epochs, and rounds of held-out evaluation."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.store.base import Store
from agentrl.tasks import load_tasks
from agentrl.types import Record, RecordStatus, Split, Task, TaskStatus

POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One round over the held-out tasks. ``success`` is the mean score of the records that could be scored."""

    step: int
    success: float
    records: tuple[Record, ...]

    @property
    def num_unscored(self) -> int:
        return sum(record.score is None for record in self.records)


def read_tasks(path: str, setting: str) -> list[Task]:
    if not Path(path).is_file():
        raise ConfigError(f"no such file: {path}", setting=setting)
    return load_tasks(path)


def training_tasks(config: RunConfig, tasks: Sequence[Task]) -> list[Task]:
    """Every epoch of the training tasks in the order they are sampled: shuffled by seed and epoch."""
    pushed = []
    for epoch in range(config.tasks.num_train_epochs):
        order = list(tasks)
        random.Random(f"{config.run.seed}/{epoch}").shuffle(order)
        pushed += [placed(config, task, Split.TRAIN, epoch, config.rollout.num_generations) for task in order]
    return pushed


def evaluation_tasks(config: RunConfig, tasks: Sequence[Task], step: int) -> list[Task]:
    return [placed(config, task, Split.EVAL, step, config.rollout.eval_generations) for task in tasks]


def placed(config: RunConfig, task: Task, split: Split, epoch: int, num_slots: int) -> Task:
    return replace(task, run=config.run.run_name, split=split, epoch=epoch, num_slots=num_slots)


def planned_steps(config: RunConfig, num_tasks: int) -> int:
    """Steps the tasks give, unless ``max_steps`` says so."""
    given = math.ceil(num_tasks * config.tasks.num_train_epochs / config.groups_per_step)
    return config.optim.max_steps if config.optim.max_steps > 0 else given


async def evaluate(store: Store, tasks: Sequence[Task], step: int) -> Evaluation:
    """Push one round (nothing happens to one already there), wait until it is played, and sum it up."""
    await store.add_tasks(tasks)
    unfinished = (TaskStatus.CREATED, TaskStatus.RUNNING)
    while any([await store.count("task", split=Split.EVAL, epoch=step, status=status) for status in unfinished]):
        await asyncio.sleep(POLL_SECONDS)
    records: list[Record] = []
    for task in tasks:
        found: list[Record] = await store.find("record", task=task.id)
        newest = {record.slot: record for record in found if record.status is not RecordStatus.EXPIRED}
        records += newest.values()
    scores = [record.score for record in records if record.score is not None]
    return Evaluation(
        step=step,
        success=sum(scores) / len(scores) if scores else 0.0,
        records=tuple(records),
    )
