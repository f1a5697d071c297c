"""``InlineStore``: the SQLite store in memory, on the thread that calls it, for simulations on a simulated clock.

The statements are those of ``SqliteStore``; only the two threads and the file are missing. A thread would be waited for
in real time, which a simulated clock does not know.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import StoreError
from agentrl.store.schema import prepare
from agentrl.store.sqlite import SqliteStore
from agentrl.store.writer import Job, Writer, answer_here

T = TypeVar("T")
IN_MEMORY = Path(":memory:")


class InlineWriter(Writer):
    """Commits each write at once."""

    __slots__ = ("db",)

    def __init__(self) -> None:
        super().__init__(IN_MEMORY)
        self.db: sqlite3.Connection | None = None

    async def open(self) -> None:
        self.db = self.db or prepare(self.path)

    async def close(self) -> None:
        if self.db is not None:
            self.db.close()
            self.db = None

    def submit(self, statement: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        job = Job(statement, loop.create_future(), loop)
        self._commit(self.opened(), [job])
        answer_here([job])
        return job.answer

    def opened(self) -> sqlite3.Connection:
        if self.db is None:
            raise StoreError("the store in memory is not open")
        return self.db


class InlineStore(SqliteStore):
    """Lives as long as it is open. ``clock`` and ``max_attempts`` are those of ``SqliteStore``."""

    def __init__(self, *, run: str, clock: Callable[[], float], **rules: Any) -> None:
        super().__init__(IN_MEMORY, run=run, clock=clock, **rules)
        self._inline = InlineWriter()
        self._writer = self._inline

    async def open(self) -> None:
        await self._inline.open()

    async def close(self) -> None:
        await self._inline.close()

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return query(self._inline.opened())
        except sqlite3.Error as error:
            raise StoreError(str(error)) from error

    async def _off_loop(self, work: Callable[[], T]) -> T:
        return work()
