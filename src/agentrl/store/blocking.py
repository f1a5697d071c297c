"""``BlockingStore``: an async store for the synchronous trainer, on an event loop of its own thread."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from agentrl.errors import StoreError
from agentrl.store.base import Store

logger = logging.getLogger(__name__)
P = ParamSpec("P")
T = TypeVar("T")


class BlockingStore:
    """``blocking.call(store.take, rule)`` waits for the answer; ``every`` goes on during a long forward pass.

    Opens ``store`` and closes it. Safe to call from several threads, not from its own event loop.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="blocking-store", daemon=True)
        self._repeating: list[Future[None]] = []
        self._closed = False
        self._thread.start()
        try:
            self.call(store.open)
        except BaseException:
            self._stop_loop()
            raise

    def call(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` on the loop and return what it returns; an interrupt cancels it.

        Raises what it raises, and first of all what ended a function given to ``every``.
        """
        if self._closed:
            raise StoreError("the store is closed")
        self._raise_ended()
        answer = asyncio.run_coroutine_threadsafe(awaited(function, *args, **kwargs), self._loop)
        try:
            return answer.result()
        except BaseException:
            answer.cancel()
            raise

    def every(self, seconds: float, function: Callable[[], Awaitable[Any]]) -> Callable[[], None]:
        """Run ``function`` now and every ``seconds``; returns what stops it.

        A ``StoreError`` (the file is busy) is logged and the next turn tries again; another error ends the repetition
        and is raised by the next ``call``.
        """
        if self._closed:
            raise StoreError("the store is closed")
        repeating = asyncio.run_coroutine_threadsafe(repeat(seconds, function), self._loop)
        self._repeating.append(repeating)

        def stop() -> None:
            repeating.cancel()

        return stop

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            for repeating in self._repeating:
                repeating.cancel()
            asyncio.run_coroutine_threadsafe(self.store.close(), self._loop).result()
        finally:
            self._stop_loop()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _raise_ended(self) -> None:
        for repeating in self._repeating:
            if repeating.done() and not repeating.cancelled() and (error := repeating.exception()) is not None:
                self._repeating.remove(repeating)
                raise error

    def _stop_loop(self) -> None:
        asyncio.run_coroutine_threadsafe(end_tasks(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def awaited(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    return await function(*args, **kwargs)


async def repeat(seconds: float, function: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await function()
        except StoreError as error:
            logger.warning("the store refused a background write, which is tried again in %g s: %s", seconds, error)
        await asyncio.sleep(seconds)


async def end_tasks() -> None:
    """Cancel what is left on the loop and wait for it, so that nothing is destroyed while pending."""
    mine = asyncio.current_task()
    others = [task for task in asyncio.all_tasks() if task is not mine]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()
