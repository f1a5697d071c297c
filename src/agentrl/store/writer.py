"""One writer thread with group commit: writes that wait together share a transaction, each in its own savepoint."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from agentrl.errors import StoreError
from agentrl.store.failures import explained
from agentrl.store.schema import BUSY_SECONDS, prepare

T = TypeVar("T")
Statement = Callable[[sqlite3.Connection], Any]
MAX_BATCH = 256


@dataclass(slots=True)
class Job:
    """One caller's write and where its answer goes. ``statement`` may run again when a shared transaction fails."""

    statement: Statement
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True)
class Writer:
    """Runs statements of many event loops on one connection, in the order they came.

    A statement that fails takes back only its own writes. A caller that is cancelled while it waits does not take its
    write back: it may have been committed.
    """

    path: Path
    _jobs: SimpleQueue[Job | None] = field(default_factory=SimpleQueue)
    _thread: threading.Thread | None = None
    _gate: threading.Lock = field(default_factory=threading.Lock)

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        self._thread = threading.Thread(target=self._run, args=(loop, ready), name="store-writer", daemon=True)
        self._thread.start()
        try:
            await ready
        except BaseException:
            self._thread = None
            raise

    async def close(self) -> None:
        with self._gate:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            self._jobs.put(None)
        await asyncio.to_thread(thread.join)

    def submit(self, statement: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        """Queue ``statement``; the future has its result once it is committed."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        with self._gate:
            if self._thread is None:
                raise StoreError(f"the store {self.path} is not open")
            self._jobs.put(Job(statement, answer, loop))
        return answer

    def _run(self, loop: asyncio.AbstractEventLoop, ready: asyncio.Future[None]) -> None:
        try:
            db = prepare(self.path)
        except Exception as error:  # whatever it is, open() waits for it
            loop.call_soon_threadsafe(fail, ready, error)
            return
        loop.call_soon_threadsafe(succeed, ready, None)
        open_ = True
        while open_:
            jobs, open_ = self._next_batch()
            self._commit(db, jobs)
            answer_all(jobs)
        db.close()

    def _next_batch(self) -> tuple[list[Job], bool]:
        """All writes that wait now, at least one; False when the last of them closes the store."""
        jobs: list[Job] = []
        with contextlib.suppress(Empty):
            while len(jobs) < MAX_BATCH:
                job = self._jobs.get(block=not jobs)
                if job is None:
                    return jobs, False
                jobs.append(job)
        return jobs, True

    def _commit(self, db: sqlite3.Connection, jobs: list[Job]) -> None:
        try:
            db.execute("BEGIN IMMEDIATE")
            for job in jobs:
                run_in_savepoint(db, job, self.path)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._commit_apart(db, jobs, error)

    def _commit_apart(self, db: sqlite3.Connection, jobs: list[Job], error: sqlite3.Error) -> None:
        """The shared transaction is gone (disk full, lock not given): one write each, so that one fails alone."""
        locked = "locked" in str(error)
        if len(jobs) == 1 or locked:
            for job in jobs:
                job.error = StoreError(explained(self.path, error, busy_seconds=BUSY_SECONDS))
            return
        for job in jobs:
            job.error = None
            self._commit(db, [job])


def run_in_savepoint(db: sqlite3.Connection, job: Job, path: Path) -> None:
    """Raises only when SQLite gave up the whole transaction."""
    db.execute("SAVEPOINT job")
    try:
        job.result = job.statement(db)
    except sqlite3.Error as error:
        if not db.in_transaction:
            raise
        job.error = StoreError(explained(path, error, busy_seconds=BUSY_SECONDS))
    except Exception as error:  # the thread serves every caller: whatever it is, it belongs to this caller alone
        job.error = error
    if job.error is not None:
        db.execute("ROLLBACK TO job")
    db.execute("RELEASE job")


def answer_all(jobs: list[Job]) -> None:
    """One wake-up for each event loop that waits. A loop that has ended has nobody to tell."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Job]] = {}
    for job in jobs:
        by_loop.setdefault(job.loop, []).append(job)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answer_here, mine)


def answer_here(jobs: list[Job]) -> None:
    for job in jobs:
        if job.error is not None:
            fail(job.answer, job.error)
        else:
            succeed(job.answer, job.result)


def succeed(answer: asyncio.Future[Any], result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
