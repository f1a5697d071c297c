"""What the agents of a simulation do: each attempt at a slot is drawn once, from the seed and its name alone.

Two simulations with other rules play the same episodes, so their figures differ by the rules and by nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from agentrl.simulate.distribution import Constant, Distribution
from agentrl.types import Record, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A model call of ``num_tokens``, then tools for ``tool_seconds``."""

    num_tokens: int
    tool_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEpisode:
    turns: tuple[PlannedTurn, ...]
    score: float

    @property
    def num_tokens(self) -> int:
        return sum(turn.num_tokens for turn in self.turns)

    @property
    def tool_seconds(self) -> float:
        return sum(turn.tool_seconds for turn in self.turns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``no_signal`` is the share of groups whose episodes all score the same, so that nothing of them is trained.

    The last turn of an episode calls no tool. ``tool_timeout`` ends a call, not its episode.
    """

    turns: Distribution = field(default_factory=lambda: Constant(value=4))
    turn_tokens: Distribution = field(default_factory=lambda: Constant(value=200))
    tool_seconds: Distribution = field(default_factory=lambda: Constant(value=1))
    tool_timeout: float = 60.0
    no_signal: float = 0.0
    seed: int = 0

    def episode(self, task: Task, record: Record) -> PlannedEpisode:
        random = Random(f"{self.seed}/{task.epoch}/{task.task_id}/{record.slot}/{record.attempt}")
        num_turns = max(1, round(self.turns.draw(random)))
        turns = tuple(
            PlannedTurn(
                num_tokens=max(1, round(self.turn_tokens.draw(random))),
                tool_seconds=min(self.tool_seconds.draw(random), self.tool_timeout) if later else 0.0,
            )
            for later in reversed(range(num_turns))
        )
        return PlannedEpisode(turns=turns, score=self.score(task, record))

    def score(self, task: Task, record: Record) -> float:
        """Half of the slots succeed, or all."""
        same = self.no_signal > 0 and Random(f"{self.seed}/{task.epoch}/{task.task_id}").random() < self.no_signal
        return 1.0 if same else float(record.slot % 2)
