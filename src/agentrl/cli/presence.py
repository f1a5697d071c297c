"""What a command of a run tells the store of itself: that it lives, what it waits for, and how the run ended."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from agentrl.errors import AgentRLError, Interrupted
from agentrl.store import Store
from agentrl.store.base import HEARTBEAT_SECONDS
from agentrl.store.blocking import repeat
from agentrl.types import Worker

RUN_END = "run/end"
"""State key: {outcome: finished | interrupted | failed, message, at} of the last start; null while it goes on."""


def this_worker(kind: str) -> Worker:
    """This process under a number of its own, because process ids come again."""
    host, pid = socket.gethostname(), os.getpid()
    return Worker(id=f"{kind}/{host}/{pid}/{time.time_ns()}", kind=kind, host=host, pid=pid)


class Heart:
    """Beats for ``worker`` from ``start`` to ``stop``; what it waits for is seen by others from the next beat on."""

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store = store
        self._worker = worker
        self._beating: asyncio.Task[None] | None = None

    def waits_for(self, what: str, *, seconds: float | None = None) -> None:
        """``seconds`` until it gives up; an empty text: it works."""
        deadline = None if seconds is None else time.time() + seconds
        self._worker = replace(self._worker, waiting_for=what, deadline=deadline)

    async def start(self) -> None:
        await self.beat()
        self._beating = asyncio.create_task(repeat(HEARTBEAT_SECONDS, self.beat), name="heartbeat")

    async def beat(self) -> None:
        await self._store.heartbeat(self._worker)

    async def stop(self) -> None:
        """The worker stays registered; ``Store.leave`` ends that."""
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
            self._beating = None


@asynccontextmanager
async def conducting(store: Store) -> AsyncIterator[Heart]:
    """This process conducts the run: it beats as a worker of kind ``run``; how the block ended is kept in the store."""
    worker = this_worker("run")
    heart = Heart(store, worker)
    await store.set_state(RUN_END, None)
    await heart.start()
    try:
        yield heart
        await note_end(store, "finished", "")
    except Interrupted as error:
        await note_end(store, "interrupted", str(error))
        raise
    except AgentRLError as error:
        await note_end(store, "failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        await heart.stop()
        await store.leave(worker.id)


async def note_end(store: Store, outcome: str, message: str) -> None:
    await store.set_state(RUN_END, {"outcome": outcome, "message": message, "at": time.time()})
