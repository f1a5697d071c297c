"""Engines that take time and give nothing else: so many slots, each at so many tokens a second; weights change at once.

A request beyond the slots waits for one, first come, first served. Weights that are published while a request runs
sample the rest of it, as in-flight updates do.
"""

from __future__ import annotations

import asyncio
import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from agentrl.engine.base import Confirmation, EngineHealth, WeightSource
from agentrl.types import Completion, Sampling, VersionSpan


@dataclass(slots=True, kw_only=True)
class WeightHistory:
    """When an engine got which version."""

    times: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def add(self, version: int, now: float) -> None:
        self.times.append(now)
        self.versions.append(version)

    def spans(self, begun: float, ended: float, num_tokens: int) -> tuple[VersionSpan, ...]:
        """Which version sampled which of ``num_tokens`` that came evenly from ``begun`` to ``ended``."""
        first = bisect.bisect_right(self.times, begun) - 1
        last = max(first, bisect.bisect_left(self.times, ended) - 1)
        seconds = (ended - begun) or 1.0
        edges = [0]
        for moment in self.times[first + 1 : last + 1]:
            edges.append(max(edges[-1], round(num_tokens * (moment - begun) / seconds)))
        edges.append(num_tokens)
        return tuple(
            VersionSpan(start=start, end=end, version=version)
            for start, end, version in zip(edges, edges[1:], self.versions[first : last + 1], strict=False)
            if end > start
        )


class SimulatedEngine:
    """``busy_seconds`` counts the seconds of its slots that requests held until ``note`` was called last."""

    def __init__(self, *, num_slots: int, tokens_per_second: float) -> None:
        self.num_slots = num_slots
        self.tokens_per_second = tokens_per_second
        self.num_running = 0
        self.num_generated = 0
        self.busy_seconds = 0.0
        self._weights = WeightHistory()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._noted = 0.0

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        """``max_new_tokens`` tokens; their ids are not made up."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        await self._enter()
        begun = loop.time()
        try:
            await asyncio.sleep(sampling.max_new_tokens / self.tokens_per_second)
        finally:
            self._leave()
        self.num_generated += sampling.max_new_tokens
        return Completion(
            token_ids=(),
            logprobs=(),
            version_spans=self._weights.spans(begun, loop.time(), sampling.max_new_tokens),
            finish_reason="stop",
            latency_seconds=loop.time() - asked,
            queue_seconds=begun - asked,
        )

    def note(self) -> None:
        """Bring ``busy_seconds`` up to now."""
        now = asyncio.get_running_loop().time()
        self.busy_seconds += self.num_running * (now - self._noted)
        self._noted = now

    async def _enter(self) -> None:
        if self.num_running < self.num_slots:
            self._take_slot()
            return
        entry = asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            await entry
        except asyncio.CancelledError:
            if entry.done() and not entry.cancelled():
                self._leave()
            raise

    def _take_slot(self) -> None:
        self.note()
        self.num_running += 1

    def _leave(self) -> None:
        """The slot passes to the request that has waited longest."""
        self.note()
        self.num_running -= 1
        while self._waiting and self.num_running < self.num_slots:
            entry = self._waiting.popleft()
            if not entry.done():
                self._take_slot()
                entry.set_result(None)

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        self._weights.add(version, asyncio.get_running_loop().time())
        return Confirmation(url="", version=version, canary_difference=None)

    async def pause(self) -> None: ...
    async def resume(self) -> None: ...

    async def health(self) -> EngineHealth:
        return EngineHealth(ready=True, version=self._weights.versions[-1], running=self.num_running)

    async def close(self) -> None: ...
