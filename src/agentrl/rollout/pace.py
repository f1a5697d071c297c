"""``Pace``: what a ``SamplingScheduler`` hears in a sampler process, and the room its episodes wait for.

Time is the event loop's, so that a loop with a simulated clock paces a simulation.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agentrl.engine.base import TokenEngine
from agentrl.rollout.scheduler import Fleet, SamplingScheduler
from agentrl.types import Completion, Sampling


class Pace:
    """Shared by all groups of a process. ``freed`` is set when there may be room for another group."""

    def __init__(self, scheduler: SamplingScheduler) -> None:
        self.scheduler = scheduler
        self.freed = asyncio.Event()
        self._waiting: deque[asyncio.Future[None]] = deque()

    def see(self, fleet: Fleet) -> None:
        self.scheduler.see(fleet)
        self._let_in()

    def group_started(self, group: str, num_episodes: int) -> None:
        self.scheduler.group_started(group, num_episodes)

    def episode_finished(self, group: str) -> None:
        self.scheduler.episode_finished(group)
        self.freed.set()

    def group_ended(self, group: str) -> None:
        self.scheduler.group_ended(group)
        self.freed.set()

    @asynccontextmanager
    async def episode(self) -> AsyncIterator[None]:
        """Room for one episode; those that wait enter in the order they came."""
        await self._enter()
        try:
            yield
        finally:
            self.scheduler.episode_ended(now())
            self._let_in()

    def counted(self, engine: TokenEngine) -> TokenEngine:
        """``engine``, whose requests the scheduler hears of."""
        return CountedEngine(engine, self.scheduler)

    async def _enter(self) -> None:
        if not self._waiting and self.scheduler.has_room:
            self.scheduler.episode_began(now())
            return
        entry = asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        try:
            await entry
        except asyncio.CancelledError:
            if entry.done() and not entry.cancelled():
                self.scheduler.episode_ended(now())
                self._let_in()
            raise

    def _let_in(self) -> None:
        """An entry begins here, not when its task wakes up: two of them never get the same room."""
        while self._waiting and self.scheduler.has_room:
            entry = self._waiting.popleft()
            if not entry.done():
                self.scheduler.episode_began(now())
                entry.set_result(None)


class CountedEngine:
    def __init__(self, engine: TokenEngine, scheduler: SamplingScheduler) -> None:
        self._engine = engine
        self._scheduler = scheduler

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        self._scheduler.request_began(now())
        try:
            return await self._engine.generate(
                prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds
            )
        finally:
            self._scheduler.request_ended(now())


def now() -> float:
    return asyncio.get_running_loop().time()
