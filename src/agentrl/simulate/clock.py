"""An event loop whose time is simulated: it jumps to the next moment at which something happens.

Everything that waits by ``asyncio`` (sleeps, time-outs, deadlines of a wait) runs as it is, in no time and in the same
order every time. There is one thread: what would run on another runs at once, on this one.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from agentrl.errors import AgentRLError

T = TypeVar("T")
RESOLUTION_SECONDS = 1e-9


class StandstillError(AgentRLError):
    """Every task of a simulation waits for another: nothing will ever happen."""


class _SimulatedWait(selectors.SelectSelector):
    """Waits for nothing but time, and needs none of it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise StandstillError("the simulation stands still: every task waits for another one")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """``time()`` begins at 0 and never goes back."""

    def __init__(self) -> None:
        self._wait = _SimulatedWait()
        super().__init__(self._wait)
        self._clock_resolution = RESOLUTION_SECONDS

    def time(self) -> float:
        return self._wait.now

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        answer: asyncio.Future[T] = self.create_future()
        try:
            answer.set_result(func(*args))
        except Exception as error:  # it belongs to whoever awaits the answer, as on another thread
            answer.set_exception(error)
        return answer


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """``asyncio.run`` on simulated time."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(main)
