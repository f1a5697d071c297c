"""Limits of one episode: one concept, asked in one place."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.config import RolloutOptions
from agentrl.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``max_repeats`` 0 or less never ends an episode for repeating itself. Times in seconds, lengths in tokens."""

    max_turns: int
    max_new_tokens: int
    max_prompt_tokens: int
    seconds: float
    max_silent_turns: int = 2
    max_repeats: int = -1

    @classmethod
    def from_options(cls, options: RolloutOptions) -> Limits:
        return cls(
            max_turns=options.max_turns,
            max_new_tokens=options.max_new_tokens,
            max_prompt_tokens=options.max_prompt_tokens,
            seconds=options.episode_timeout,
            max_silent_turns=options.max_silent_turns,
            max_repeats=options.repetition_early_stop_times,
        )

    def reached(self, num_turns: int, prompt_tokens: int) -> Outcome | None:
        """Why no further model call may be made, or None."""
        if num_turns >= self.max_turns:
            return Outcome.TURNS_LIMIT
        if prompt_tokens > self.max_prompt_tokens:
            return Outcome.CONTEXT_LIMIT
        return None

    def leaves_one_turn(self, num_turns: int) -> bool:
        """After ``num_turns`` calls exactly one is left, and it is not the only one."""
        return num_turns == self.max_turns - 1 > 0
