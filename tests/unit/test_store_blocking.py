"""The synchronous trainer's view of a store."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, LeaseLost, StoreError
from agentrl.store import BlockingStore
from agentrl.store.sqlite import SqliteStore
from agentrl.types import Claim, Split, Task, Worker


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "run.db", run="r")


THERE_BEFORE: set[threading.Thread] = set()


@pytest.fixture(autouse=True)
def _note_threads() -> None:
    THERE_BEFORE.clear()
    THERE_BEFORE.update(threading.enumerate())


def store_threads() -> list[str]:
    """Of stores that this test opened."""
    return [thread.name for thread in threading.enumerate() if "store" in thread.name and thread not in THERE_BEFORE]


def test_calls_wait_for_their_answer_and_raise_its_error(store: SqliteStore) -> None:
    with BlockingStore(store) as blocking:
        assert blocking.call(store.add_tasks, [Task(task_id="a", query="q")]) == 1
        assert blocking.call(store.count, "task", split=Split.TRAIN) == 1
        claim = blocking.call(store.claim, "w", splits=[Split.TRAIN])
        assert isinstance(claim, Claim)
        blocking.call(store.release, claim)
        with pytest.raises(LeaseLost):
            blocking.call(store.release, claim)
    assert store_threads() == []
    with pytest.raises(StoreError, match="closed"):
        blocking.call(store.count, "task")
    blocking.close()


def test_a_heartbeat_goes_on_while_the_caller_computes(store: SqliteStore) -> None:
    beats: list[float] = []

    async def beat() -> None:
        await store.heartbeat(Worker(id="trainer", kind="trainer", host="h", pid=1))
        beats.append(time.monotonic())

    with BlockingStore(store) as blocking:
        stop = blocking.every(0.02, beat)
        deadline = time.monotonic() + 5
        while len(beats) < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(beats) >= 5
        assert [worker.id for worker in blocking.call(store.workers)] == ["trainer"]
        stop()
        blocking.call(store.count, "task")
        stopped_at = len(beats)
        time.sleep(0.1)
        assert len(beats) <= stopped_at + 1
        blocking.every(0.02, beat)
    assert store_threads() == []


def test_a_busy_store_does_not_end_a_heartbeat_and_a_mistake_reaches_the_caller(store: SqliteStore) -> None:
    tries: list[int] = []

    async def busy_at_first() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise StoreError("database is locked")
        raise ZeroDivisionError("a mistake")

    with BlockingStore(store) as blocking:
        blocking.every(0.01, busy_at_first)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the call that comes after the mistake raises it
            for _ in range(500):
                blocking.call(store.count, "task")
                time.sleep(0.01)
        assert len(tries) == 3
        assert blocking.call(store.count, "task") == 0


def test_a_store_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        BlockingStore(SqliteStore(tmp_path, run="r"))
    assert store_threads() == []
