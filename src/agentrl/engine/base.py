"""What an engine promises: token ids in, token ids with log-probs and version spans out; weights change in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.errors import EngineError
from agentrl.types import Completion, Message, Sampling, VersionSpan


class RequestRefused(EngineError):
    """The request itself is wrong, so repeating it cannot help; the engine is well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Canary:
    """A fixed prompt and the trainer's log-probs of its tokens 1..n-1 under the new weights, at temperature 1.

    The engine must reproduce them within ``tolerance`` (largest absolute difference) before it serves the version.
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    tolerance: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where an engine reads a version from: a folder of safetensors on this host (``disk``, ``ipc`` on /dev/shm)."""

    path: str
    canary: Canary | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """An engine serves ``version`` now; ``canary_difference`` is the largest absolute log-prob difference it saw."""

    url: str
    version: int
    canary_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHealth:
    ready: bool
    version: int | None
    running: int
    waiting: int = 0
    generated_tokens: int = 0
    detail: str = ""


class TokenEngine(Protocol):
    """What an episode needs. Safe for many concurrent calls of one event loop; cancelling the awaiting task frees the
    slot."""

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        """Raise ``ContextTooLong`` or ``EngineError``; waits while no version is loaded or the engine is paused."""
        ...


class Engine(TokenEngine, Protocol):
    """An engine whose weights change while it serves."""

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        """Requests in flight go on; their later tokens carry ``version``. Raise ``WeightsError`` on a bad canary."""
        ...

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def health(self) -> EngineHealth: ...
    async def close(self) -> None: ...


class ChatEngine(Protocol):
    """Messages in, message out: judges, API models."""

    async def chat(self, messages: Sequence[Message], *, deadline_seconds: float) -> Message: ...


def spans_of(versions: Sequence[int]) -> tuple[VersionSpan, ...]:
    """Runs of equal versions."""
    edges = [i for i in range(len(versions)) if i == 0 or versions[i] != versions[i - 1]]
    ends = [*edges[1:], len(versions)]
    return tuple(
        VersionSpan(start=start, end=end, version=versions[start]) for start, end in zip(edges, ends, strict=True)
    )
