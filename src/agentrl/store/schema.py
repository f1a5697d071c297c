"""Tables of the SQLite backend, and the one way a connection is opened.

Small columns come before blobs, so that a rule that reads states does not read tokens. ``round`` counts how often a
group ran from the start (after it went stale, or its lineage ended); records and rows of earlier rounds stay.
"""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.store import counters
from agentrl.store.failures import explained

SCHEMA_VERSION = 4
APPLICATION_ID = 0x41475253
BUSY_SECONDS = 30.0
SETTING = "--db_connection_string"

TABLES = """
CREATE TABLE task (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, id TEXT NOT NULL, split TEXT NOT NULL, epoch INTEGER NOT NULL,
    task_id TEXT NOT NULL, num_slots INTEGER NOT NULL, seq INTEGER NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '', claim_no INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '',
    round INTEGER NOT NULL DEFAULT 0, fruitless_claims INTEGER NOT NULL DEFAULT 0,
    times_stale INTEGER NOT NULL DEFAULT 0, phase TEXT NOT NULL DEFAULT '', phase_reason TEXT NOT NULL DEFAULT '',
    created_at REAL NOT NULL, updated_at REAL NOT NULL, doc TEXT NOT NULL, verdict TEXT, UNIQUE (run, id));
CREATE INDEX task_by_seq ON task (run, split, seq);
CREATE INDEX task_by_state ON task (run, split, status, seq);
CREATE INDEX task_by_owner ON task (run, owner, split, seq) WHERE status = 'running';

CREATE TABLE record (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, id TEXT NOT NULL, task TEXT NOT NULL, slot INTEGER NOT NULL,
    attempt INTEGER NOT NULL, claim_no INTEGER NOT NULL, round INTEGER NOT NULL, status TEXT NOT NULL,
    reason TEXT NOT NULL, outcome TEXT, score REAL, created_at REAL NOT NULL, updated_at REAL NOT NULL,
    doc TEXT NOT NULL, UNIQUE (run, id, claim_no));
CREATE INDEX record_by_task ON record (run, task, slot, attempt);

CREATE TABLE turn (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, record TEXT NOT NULL, turn INTEGER NOT NULL, claim_no INTEGER NOT NULL,
    status TEXT NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL, doc TEXT NOT NULL,
    prompt_ids BLOB NOT NULL, token_ids BLOB NOT NULL, logprobs BLOB NOT NULL, UNIQUE (run, record, turn));

CREATE TABLE data_row (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, record TEXT NOT NULL, task TEXT NOT NULL, seq INTEGER NOT NULL,
    slot INTEGER NOT NULL, round INTEGER NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL DEFAULT '', step INTEGER,
    judged_at INTEGER, trained_count INTEGER NOT NULL DEFAULT 0, start_version INTEGER NOT NULL,
    end_version INTEGER NOT NULL, version_set TEXT NOT NULL, reward REAL NOT NULL, created_at REAL NOT NULL,
    updated_at REAL NOT NULL, turns TEXT NOT NULL, token_ids BLOB NOT NULL, mask BLOB NOT NULL, versions BLOB NOT NULL,
    logprobs BLOB NOT NULL, UNIQUE (run, record));
CREATE INDEX row_by_state ON data_row (run, status, seq, slot);
CREATE INDEX row_by_step ON data_row (run, step) WHERE step IS NOT NULL;
CREATE INDEX row_by_judgement ON data_row (run, judged_at) WHERE judged_at IS NOT NULL;
CREATE INDEX row_by_age ON data_row (run, start_version, end_version) WHERE status = 'ready';
CREATE INDEX row_by_task ON data_row (run, task);

CREATE TABLE group_use (
    run TEXT NOT NULL, task TEXT NOT NULL, number INTEGER NOT NULL, step INTEGER NOT NULL,
    PRIMARY KEY (run, task, number)) WITHOUT ROWID;
CREATE INDEX use_by_step ON group_use (run, step);

CREATE TABLE version (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, version INTEGER NOT NULL, step INTEGER NOT NULL, parent INTEGER,
    position INTEGER NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL, doc TEXT NOT NULL,
    UNIQUE (run, version));
CREATE INDEX version_by_publication ON version (run, position);

CREATE TABLE worker (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, id TEXT NOT NULL, kind TEXT NOT NULL, host TEXT NOT NULL,
    pid INTEGER NOT NULL, waiting_for TEXT NOT NULL DEFAULT '', deadline REAL, heartbeat REAL NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL, UNIQUE (run, id));

CREATE TABLE service (
    n INTEGER PRIMARY KEY, run TEXT NOT NULL, url TEXT NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL,
    created_at REAL NOT NULL, updated_at REAL NOT NULL, doc TEXT NOT NULL, UNIQUE (run, url));

CREATE TABLE state (
    run TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, created_at REAL NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (run, key));
"""


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """A connection in WAL mode that waits ``BUSY_SECONDS`` for other processes; transactions are begun by hand."""
    db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    db.row_factory = sqlite3.Row
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA query_only = {'ON' if read_only else 'OFF'}")
    return db


def prepare(path: Path) -> sqlite3.Connection:
    """Open the store at ``path`` for writing, creating its tables when the file is new.

    Raises ``ConfigError`` when the file is no store of ours, of another schema, or cannot be opened.
    """
    if sqlite3.sqlite_version_info < (3, 35):
        raise ConfigError(f"needs SQLite >= 3.35, this Python has {sqlite3.sqlite_version}", setting=SETTING)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        db = connect(path)
        use_write_ahead_log(db)
        create_tables(db, path)
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(
            f"cannot open {explained(path, error, busy_seconds=BUSY_SECONDS)}", setting=SETTING
        ) from error
    return db


def use_write_ahead_log(db: sqlite3.Connection) -> None:
    """The switch to WAL ignores the busy timeout while another process switches too, so it is tried again."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def create_tables(db: sqlite3.Connection, path: Path) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables == 0:
            for statement in (*filter(str.strip, f"{TABLES}{counters.TABLES}".split(";")), *counters.TRIGGERS):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        else:
            require_ours(db, path)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        db.close()
        raise


def require_ours(db: sqlite3.Connection, path: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise ConfigError(f"{path} is a SQLite file of another program; name a new file", setting=SETTING)
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found != SCHEMA_VERSION:
        raise ConfigError(
            f"{path} has schema version {found}, this program reads {SCHEMA_VERSION}; "
            "use the program that wrote it, or name a new file",
            setting=SETTING,
        )


def runs_in(path: Path) -> list[str]:
    """Names of the runs whose documents the store at ``path`` holds, the one that changed last at first.

    Raises ``ConfigError`` when there is no such file, or it is no store of ours.
    """
    if not path.is_file():
        raise ConfigError(f"there is no store at {path}", setting=SETTING)
    try:
        with closing(connect(path, read_only=True)) as db:
            if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                return []  # another process is making it just now
            require_ours(db, path)
            found = db.execute(
                """SELECT run FROM (SELECT run, updated_at FROM state UNION ALL SELECT run, updated_at FROM version
                UNION ALL SELECT run, updated_at FROM worker UNION ALL SELECT DISTINCT run, 0 FROM task)
                GROUP BY run ORDER BY max(updated_at) DESC"""
            )
            return [run for (run,) in found]
    except sqlite3.Error as error:
        raise ConfigError(
            f"cannot read {explained(path, error, busy_seconds=BUSY_SECONDS)}", setting=SETTING
        ) from error
