"""``FaultyStore``: the store in memory, where a write may be lost on the way, its answer may be, or the disk is full.

The store's statements and SQLite itself are real; a full disk is SQLite's own limit on pages.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, TypeVar

from agentrl.errors import StoreError
from agentrl.store.inline import InlineStore, InlineWriter

T = TypeVar("T")


class Fault(Enum):
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    DISK_FULL = "disk full"


class CutOffError(Exception):
    """The caller does not know whether its write was carried out."""


class FaultyWriter(InlineWriter):
    """Meets the next write with ``next_fault``, once."""

    next_fault: Fault | None = None

    def submit(self, statement: Callable[[sqlite3.Connection], T]) -> asyncio.Future[T]:
        fault, self.next_fault = self.next_fault, None
        if fault is Fault.REQUEST_LOST:
            raise CutOffError(fault.value)
        if fault is Fault.DISK_FULL:
            with full_disk(self.opened()):
                answer = super().submit(statement)
            self.note_full(answer)
            return answer
        answer = super().submit(statement)
        if fault is Fault.ANSWER_LOST:
            answer.exception()
            raise CutOffError(fault.value)
        return answer

    def note_full(self, answer: asyncio.Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, StoreError) and "disk is full" in str(error):
            raise CutOffError(Fault.DISK_FULL.value)


@contextmanager
def full_disk(db: sqlite3.Connection) -> Iterator[None]:
    (limit,) = db.execute("PRAGMA max_page_count").fetchone()
    (used,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {used}")
    try:
        yield
    finally:
        db.execute(f"PRAGMA max_page_count = {limit}")


class FaultyStore(InlineStore):
    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self._inline = FaultyWriter()
        self._writer = self._inline

    def arm(self, fault: Fault | None) -> None:
        """``fault`` meets the next write."""
        self._inline.next_fault = fault

    def database(self) -> sqlite3.Connection:
        return self._inline.opened()

    def neighbour(self, run: str) -> InlineStore:
        """Another run in the same database; no fault meets it."""
        other = InlineStore(run=run, clock=self._clock)
        other._inline.db = self.database()
        return other
