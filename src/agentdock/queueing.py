"""A fair queue in front of a server or a tool: so many calls at once, and those who wait take turns by who they are."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager


class FairQueue:
    """``limit`` places. A free place goes to the caller, of those who wait, whose last turn is longest ago.

    Within one caller it goes by the order of arrival. A caller who gives up leaves the queue, or hands the place on.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._free = limit
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @property
    def num_waiting(self) -> int:
        return sum(len(queue) for queue in self._waiting.values())

    @asynccontextmanager
    async def place(self, caller: str) -> AsyncIterator[None]:
        await self._enter(caller)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, caller: str) -> None:
        if self._free and not self._waiting:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(caller, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()
            else:
                self._withdraw(caller, turn)
            raise

    def _leave(self) -> None:
        """Hand the place to the next caller, who then goes to the end of the row of callers."""
        while self._waiting:
            caller, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[caller] = queue
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def _withdraw(self, caller: str, turn: asyncio.Future[None]) -> None:
        queue = self._waiting.get(caller)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[caller]


@asynccontextmanager
async def places(queues: Iterable[FairQueue], caller: str) -> AsyncIterator[None]:
    """A place in each of ``queues``, always taken in this order, so that nobody waits in a circle."""
    async with AsyncExitStack() as stack:
        for queue in queues:
            await stack.enter_async_context(queue.place(caller))
        yield
