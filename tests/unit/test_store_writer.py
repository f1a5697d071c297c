"""Group commit: who shares a transaction, and who pays when it fails."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.errors import StoreError
from agentrl.store import schema
from agentrl.store.writer import Writer

PUT = "INSERT INTO state (run, key, value, created_at, updated_at) VALUES ('r', ?, '1', 0, 0)"


def put(key: str) -> Callable[[sqlite3.Connection], Any]:
    return lambda db: db.execute(PUT, (key,)).rowcount


def keys(path: Path) -> set[str]:
    db = sqlite3.connect(path)
    found = {key for (key,) in db.execute("SELECT key FROM state")}
    db.close()
    return found


async def write_together(path: Path, statements: list[Callable[[sqlite3.Connection], Any]]) -> list[Any]:
    writer = Writer(path)
    await writer.open()
    answers = await asyncio.gather(*(writer.submit(each) for each in statements), return_exceptions=True)
    await writer.close()
    return answers


def test_a_statement_that_fails_half_way_takes_back_only_its_own_writes(tmp_path: Path) -> None:
    def half(db: sqlite3.Connection) -> None:
        put("half")(db)
        raise StoreError("on purpose")

    def twice(db: sqlite3.Connection) -> None:
        put("twice")(db)
        put("twice")(db)

    first, half_way, doubled, last = asyncio.run(write_together(tmp_path / "run.db", [put("a"), half, twice, put("b")]))
    assert (first, last) == (1, 1)
    assert str(half_way) == "on purpose"
    assert isinstance(doubled, StoreError)
    assert "UNIQUE" in str(doubled)
    assert keys(tmp_path / "run.db") == {"a", "b"}


def test_when_the_shared_transaction_is_lost_only_the_culprit_fails(tmp_path: Path) -> None:
    def fill_the_disk(db: sqlite3.Connection) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")
        try:
            db.execute("CREATE TABLE big (x)")
            db.execute("INSERT INTO big VALUES (zeroblob(1000000))")
        finally:
            db.execute("PRAGMA max_page_count = 1000000")

    answers = asyncio.run(
        write_together(tmp_path / "run.db", [*(put(f"a{i}") for i in range(20)), fill_the_disk, put("b")])
    )
    assert [answer for answer in answers if not isinstance(answer, StoreError)] == [1] * 21
    assert "full" in str(answers[20])
    assert keys(tmp_path / "run.db") == {*(f"a{i}" for i in range(20)), "b"}


def test_a_lock_that_another_process_keeps_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    path = tmp_path / "run.db"
    asyncio.run(write_together(path, [put("a")]))

    async def blocked() -> None:
        writer = Writer(path)
        await writer.open()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has held the write lock"):
            await writer.submit(put("b"))
        other.execute("ROLLBACK")
        other.close()
        assert await writer.submit(put("c")) == 1
        await writer.close()

    asyncio.run(blocked())
    assert keys(path) == {"a", "c"}


def test_a_cancelled_caller_does_not_disturb_the_others(tmp_path: Path) -> None:
    async def cancel_one() -> None:
        writer = Writer(tmp_path / "run.db")
        await writer.open()
        answers = [writer.submit(put(f"k{i}")) for i in range(10)]
        answers[3].cancel()
        done = await asyncio.gather(*answers, return_exceptions=True)
        assert [type(answer) for answer in done].count(int) == 9
        await writer.close()

    asyncio.run(cancel_one())
    assert len(keys(tmp_path / "run.db")) == 10
