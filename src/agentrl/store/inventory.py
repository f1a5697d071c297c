"""Which runs a SQLite store holds, how much of it each has, and how all of one run is deleted.

A deletion goes in short transactions, so that other runs of the file are not kept waiting. What was begun is marked:
the run cannot be opened meanwhile, and one that was cut short is finished by asking again.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.store.base import LEASE_SECONDS
from agentrl.store.schema import SETTING, connect, require_ours

DROPPING = "dropping"
"""State key of a run that is being deleted. States that callers set lie below ``state/``."""

ROWS_AT_ONCE = 500
"""Deleted in one transaction: some 13 MB of turns, a fraction of a second."""

KINDS = {
    "turn": "DispatchedSamplingTask",
    "data_row": "DBRecordData",
    "record": "Record",
    "task": "Task",
    "version": "WeightVersion",
    "service": "InferenceService",
    "worker": "Worker",
}
"""Table -> the documents it holds, in the order in which they are deleted."""

TOTALS = ("group_use", "counter", "pass_rate", "spent", "state")
"""Tables of what is derived or remembered, deleted last: the mark is in ``state``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one run has in a store. ``num_bytes`` are those of its documents, without the indexes over them."""

    run: str
    documents: Mapping[str, int]
    """Kind of document -> how many."""
    num_bytes: int
    updated_at: float
    """Of the last write, in seconds since the epoch."""
    dropping: bool = False
    """A deletion was begun and not finished."""


@contextmanager
def opened(path: Path, *, read_only: bool) -> Iterator[sqlite3.Connection]:
    """A connection to the store at ``path``, which has to be there."""
    if not path.is_file():
        raise ConfigError(f"there is no store at {path}", setting=SETTING)
    try:
        with closing(connect(path, read_only=read_only)) as db:
            require_ours(db, path)
            yield db
    except sqlite3.Error as error:
        raise ConfigError(f"cannot {'read' if read_only else 'change'} {path}: {error}", setting=SETTING) from error


def holdings(path: Path) -> list[Holding]:
    """Of every run, the one that changed last at first. Reads the sizes of all documents: seconds for gigabytes."""
    with opened(path, read_only=True) as db:
        found = [holding(db, run) for run in run_names(db)]
    return sorted(found, key=lambda each: each.updated_at, reverse=True)


def run_names(db: sqlite3.Connection) -> list[str]:
    """Found by hopping from one run to the next in the index of each table, not by reading its rows."""
    names: set[str] = set()
    for table in (*KINDS, *TOTALS):
        hops = db.execute(
            f"""WITH RECURSIVE hop (run) AS (SELECT min(run) FROM {table} UNION ALL
                SELECT (SELECT min(run) FROM {table} WHERE run > hop.run) FROM hop WHERE hop.run IS NOT NULL)
            SELECT run FROM hop WHERE run IS NOT NULL"""
        )
        names |= {run for (run,) in hops}
    return sorted(names)


def holding(db: sqlite3.Connection, run: str) -> Holding:
    documents, num_bytes, updated_at = {}, 0, 0.0
    for table, kind in KINDS.items():
        count, size, updated = db.execute(
            f"SELECT count(*), coalesce(sum({size_of(db, table)}), 0), coalesce(max(updated_at), 0) "
            f"FROM {table} WHERE run = ?",
            (run,),
        ).fetchone()
        documents[kind] = count
        num_bytes += size
        updated_at = max(updated_at, updated)
    (updated,) = db.execute("SELECT coalesce(max(updated_at), 0) FROM state WHERE run = ?", (run,)).fetchone()
    return Holding(
        run=run,
        documents=documents,
        num_bytes=num_bytes,
        updated_at=max(updated_at, updated),
        dropping=is_dropping(db, run),
    )


def size_of(db: sqlite3.Connection, table: str) -> str:
    """SQL of the bytes of one row; blobs are measured without being read."""
    text_size = "octet_length({})" if sqlite3.sqlite_version_info >= (3, 43) else "length(CAST({} AS BLOB))"
    sizes = {"TEXT": text_size, "BLOB": "length({})"}
    columns = db.execute(f"PRAGMA table_info({table})").fetchall()
    return " + ".join(f"coalesce({sizes.get(each['type'], '8').format(each['name'])}, 0)" for each in columns)


def is_dropping(db: sqlite3.Connection, run: str) -> bool:
    return db.execute("SELECT 1 FROM state WHERE run = ? AND key = ?", (run, DROPPING)).fetchone() is not None


def refuse_dropping(db: sqlite3.Connection, path: Path, run: str) -> None:
    """Of a run that is half gone nothing may be written: what is left would look like the whole."""
    if is_dropping(db, run):
        raise ConfigError(
            f"{run} is being deleted from {path}; if that was cut short, finish it: "
            f"agentrl store drop {run} --db_connection_string sqlite:///{path} --yes",
            setting="--run_name",
        )


# --- Deleting --------------------------------------------------------------------------------------------------------


def drop_run(
    path: Path, run: str, *, lease_seconds: float = LEASE_SECONDS, clock: Callable[[], float] = time.time
) -> int:
    """Delete all documents of ``run`` and nothing else; returns how many there were.

    Raises ``ConfigError`` while a process of the run is alive. The space is used again by what is written next; the
    file does not shrink.
    """
    num_deleted = 0
    with opened(path, read_only=False) as db:
        if run not in run_names(db):
            raise ConfigError(f"{path} holds no run {run!r}", setting="RUN")
        mark(db, run, clock(), lease_seconds)
        for table in KINDS:
            while count := delete_some(db, table, run):
                num_deleted += count
        with transaction(db):
            for table in TOTALS:
                db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
    return num_deleted


def mark(db: sqlite3.Connection, run: str, now: float, lease_seconds: float) -> None:
    with transaction(db):
        refuse_live(db, run, now, lease_seconds)
        db.execute(
            "INSERT INTO state (run, key, value, created_at, updated_at) VALUES (?, ?, 'true', ?, ?) "
            "ON CONFLICT DO NOTHING",
            (run, DROPPING, now, now),
        )


def refuse_live(db: sqlite3.Connection, run: str, now: float, lease_seconds: float) -> None:
    """A process that was heard of within a lease may be at work, also on another host."""
    alive = db.execute(
        "SELECT id, host, pid FROM worker WHERE run = ? AND abs(? - heartbeat) < ? ORDER BY heartbeat DESC LIMIT 1",
        (run, now, lease_seconds),
    ).fetchone()
    if alive is not None:
        raise ConfigError(
            f"{run} is alive: {alive['id']} (process {alive['pid']} on {alive['host']}) was heard of within the last "
            f"{lease_seconds:.0f} s; stop it first, or wait that long if it has ended",
            setting="RUN",
        )


def delete_some(db: sqlite3.Connection, table: str, run: str) -> int:
    with transaction(db):
        return db.execute(
            f"DELETE FROM {table} WHERE n IN (SELECT n FROM {table} WHERE run = ? LIMIT {ROWS_AT_ONCE})", (run,)
        ).rowcount


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
