"""Task files into the store."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.tasks import load_tasks
from agentrl.types import Split, Task


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


def evaluation_tasks(config: RunConfig, tasks: Sequence[Task], version: int) -> list[Task]:
    """One round: the held-out tasks at a published version."""
    return [placed(config, task, Split.EVAL, version, config.rollout.eval_generations) for task in tasks]


def placed(config: RunConfig, task: Task, split: Split, epoch: int, num_slots: int) -> Task:
    return replace(task, run=config.run.run_name, split=split, epoch=epoch, num_slots=num_slots)


def planned_steps(config: RunConfig, num_tasks: int) -> int:
    """Steps the tasks give, unless ``max_steps`` says so."""
    return steps_of_groups(config, num_tasks * config.tasks.num_train_epochs)


def steps_of_groups(config: RunConfig, num_groups: int) -> int:
    given = math.ceil(num_groups * config.pacing.max_trained_count / config.groups_per_step)
    return config.optim.max_steps if config.optim.max_steps > 0 else given
