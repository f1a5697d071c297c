"""Which task the next training group plays: the order of ``--task_sampling``.

A choice depends on the seed, on its position in the run, and on what earlier groups of the run have shown; so whoever
makes it, before or after a restart, makes the same one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import Task

EVIDENCE = 32.0
"""Scores that a pass rate counts for at most: the policy moves on, so old ones do not add up for ever."""
PRIOR = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a run knows of a task: groups that were pushed, whether one is not finished, and its scores."""

    num_pushed: int = 0
    unfinished: bool = False
    num_scored: int = 0
    mean_score: float | None = None
    last_score: float | None = None
    """Mean of its last group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The place of a group in the run, from 0, and the run's seed."""

    seed: int
    number: int


History = Mapping[str, Shown]
"""By ``task_id``; a task that is missing was never pushed."""

NEVER = Shown()


def uniform(tasks: Sequence[Task], position: Position, history: History) -> Task:
    """Every task once an epoch, shuffled by seed and epoch."""
    epoch, place = divmod(position.number, len(tasks))
    return tasks[order(len(tasks), f"{position.seed}/{epoch}")[place]]


def by_difficulty(tasks: Sequence[Task], position: Position, history: History) -> Task:
    """Drawn by how much signal a group promises; tasks whose last group is not finished wait for it."""
    idle = [task for task in tasks if not history.get(task.task_id, NEVER).unfinished] or tasks
    promises = [promise(history.get(task.task_id, NEVER)) for task in idle]
    draw = random.Random(f"{position.seed}/difficulty/{position.number}")
    return draw.choices(idle, promises)[0]


def by_weights(tasks: Sequence[Task], position: Position, history: History) -> Task:
    """The task that lags most behind its share of the groups so far; of several the first in the order of the seed."""
    weights = [weight_of(task) for task in tasks]
    total = math.fsum(weights)
    if not total > 0:
        raise ConfigError("no task has a weight above 0", setting="--task_sampling")

    def lag(index: int) -> float:
        pushed = history.get(tasks[index].task_id, NEVER).num_pushed
        return weights[index] * (position.number + 1) / total - pushed

    eligible = (index for index in order(len(tasks), f"{position.seed}/weights") if weights[index] > 0)
    return tasks[max(eligible, key=lag)]


POLICIES: Mapping[str, Callable[[Sequence[Task], Position, History], Task]] = {
    "uniform": uniform,
    "difficulty": by_difficulty,
    "weights": by_weights,
}
"""Name of ``--task_sampling`` -> what chooses."""


def promise(shown: Shown) -> float:
    """Square of the expected 4 p (1 - p), which is 1 at a pass rate p of one half and 0 where all siblings agree.

    p is uncertain: Beta(1/2 + right, 1/2 + wrong), with the mean of all scores and of the last group's as the share
    that was right. A task nobody has tried has 0.25, one that was right in one of two, often tried, nearly 1, and one
    that was right or wrong 32 times of 32 less than 0.01.
    """
    if shown.mean_score is None or not shown.num_scored:
        right = wrong = PRIOR
    else:
        last = shown.mean_score if shown.last_score is None else shown.last_score
        rate = min(1.0, max(0.0, (shown.mean_score + last) / 2))
        evidence = min(float(shown.num_scored), EVIDENCE)
        right, wrong = PRIOR + evidence * rate, PRIOR + evidence * (1.0 - rate)
    tried = right + wrong
    return (4.0 * right * wrong / (tried * (tried + 1.0))) ** 2


def weight_of(task: Task) -> float:
    """Field ``weight`` of the task's row or of its metadata; 1 without one. Raise ``ConfigError`` for any other."""
    weight: Any = task.metadata.get("weight", 1.0)
    number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not number or not math.isfinite(weight) or weight < 0:
        raise ConfigError(
            f"task {task.task_id}: weight {weight!r} is no number of 0 or more", setting="--task_sampling weights"
        )
    return float(weight)


@lru_cache(maxsize=8)
def order(count: int, seed: str) -> tuple[int, ...]:
    shuffled = list(range(count))
    random.Random(seed).shuffle(shuffled)
    return tuple(shuffled)
