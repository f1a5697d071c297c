"""SQL of everything that is registered: tasks, published versions, workers, services, state."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from agentrl.errors import StoreError
from agentrl.store import documents
from agentrl.store.steps import END_OF_STREAM
from agentrl.types import InferenceService, Task, WeightVersion, Worker


def add_tasks(db: sqlite3.Connection, run: str, tasks: Sequence[tuple[Task, str]], now: float) -> int:
    """Insert tasks that are not there yet, numbered on from the highest ``seq`` of their split."""
    next_seq = {split: next_seq_of(db, run, split) for split in sorted({str(task.split) for task, _ in tasks})}
    first_seq = dict(next_seq)
    for task, doc in tasks:
        split = str(task.split)
        next_seq[split] += db.execute(
            """INSERT INTO task (run, id, split, epoch, task_id, num_slots, seq, status, created_at, updated_at, doc)
            VALUES (?, ?, ?, ?, ?, ?, ?, 'created', ?, ?, ?) ON CONFLICT (run, id) DO NOTHING""",
            (run, task.id, split, task.epoch, task.task_id, task.num_slots, next_seq[split], now, now, doc),
        ).rowcount
    for split, seq in next_seq.items():
        if seq > first_seq[split]:
            forget_state(db, run, f"{END_OF_STREAM}{split}")
    return sum(next_seq.values()) - sum(first_seq.values())


def next_seq_of(db: sqlite3.Connection, run: str, split: str) -> int:
    (seq,) = db.execute(
        "SELECT coalesce(max(seq) + 1, 0) FROM task WHERE run = ? AND split = ?", (run, split)
    ).fetchone()
    return seq


def publish_version(db: sqlite3.Connection, run: str, version: WeightVersion, doc: str, now: float) -> None:
    if version.parent is not None and version.parent >= version.version:
        raise StoreError(f"version {version.version} has parent {version.parent}; a parent has a lower number")
    known = db.execute("SELECT * FROM version WHERE run = ? AND version = ?", (run, version.version)).fetchone()
    if known is not None:
        require_same_weights(documents.version(known), version)
    db.execute(
        """INSERT INTO version (run, version, step, parent, position, created_at, updated_at, doc)
        VALUES (:run, :version, :step, :parent,
                (SELECT coalesce(max(position), 0) + 1 FROM version WHERE run = :run), :now, :now, :doc)
        ON CONFLICT (run, version) DO UPDATE SET
            position = excluded.position, updated_at = excluded.updated_at, doc = excluded.doc""",
        {
            "run": run,
            "version": version.version,
            "step": version.step,
            "parent": version.parent,
            "now": now,
            "doc": doc,
        },
    )


def require_same_weights(known: WeightVersion, again: WeightVersion) -> None:
    """A restored version is published again with its old number; other weights need a new one."""
    for name in ("step", "parent", "tensor_hash"):
        before, now = getattr(known, name), getattr(again, name)
        known_both_times = before not in (None, "") and now not in (None, "")
        if known_both_times and before != now:
            raise StoreError(
                f"version {known.version} was published with {name} {before!r}, now with {now!r}; "
                "numbers are never reused: ask next_version"
            )


def latest_version(db: sqlite3.Connection, run: str) -> sqlite3.Row | None:
    return db.execute("SELECT * FROM version WHERE run = ? ORDER BY position DESC LIMIT 1", (run,)).fetchone()


def next_version(db: sqlite3.Connection, run: str) -> int:
    return db.execute("SELECT coalesce(max(version) + 1, 0) FROM version WHERE run = ?", (run,)).fetchone()[0]


def note_claimer(db: sqlite3.Connection, run: str, worker: str, now: float) -> None:
    """A claim proves that its worker lives; one that never sent a heartbeat is registered by it."""
    db.execute(
        """INSERT INTO worker (run, id, kind, host, pid, heartbeat, created_at, updated_at)
        VALUES (?, ?, '', '', 0, ?, ?, ?)
        ON CONFLICT (run, id) DO UPDATE SET heartbeat = excluded.heartbeat, updated_at = excluded.updated_at""",
        (run, worker, now, now, now),
    )


def heartbeat(db: sqlite3.Connection, run: str, worker: Worker, now: float) -> None:
    former = db.execute("SELECT host, pid FROM worker WHERE run = ? AND id = ?", (run, worker.id)).fetchone()
    if former is not None and former["pid"] != 0 and tuple(former) != (worker.host, worker.pid):
        disown(db, run, worker.id, now)
    db.execute(
        """INSERT INTO worker (run, id, kind, host, pid, waiting_for, deadline, heartbeat, created_at, updated_at)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, id) DO UPDATE SET kind = excluded.kind, host = excluded.host, pid = excluded.pid,
            waiting_for = excluded.waiting_for, deadline = excluded.deadline, heartbeat = excluded.heartbeat,
            updated_at = excluded.updated_at""",
        (run, worker.id, worker.kind, worker.host, worker.pid, worker.waiting_for, worker.deadline, now, now, now),
    )


def disown(db: sqlite3.Connection, run: str, worker: str, now: float) -> None:
    """End the leases of ``worker``: its groups stay running, without an owner, and are free."""
    db.execute(
        "UPDATE task SET owner = '', updated_at = ? WHERE run = ? AND owner = ? AND status = 'running'",
        (now, run, worker),
    )


def leave(db: sqlite3.Connection, run: str, worker: str, now: float) -> None:
    disown(db, run, worker, now)
    db.execute("DELETE FROM worker WHERE run = ? AND id = ?", (run, worker))


def expire_dead_workers(db: sqlite3.Connection, run: str, host: str, now: float, lease: float) -> list[str]:
    live = db.execute(
        "SELECT id, pid FROM worker WHERE run = ? AND host = ? AND pid <> 0 AND heartbeat > ? ORDER BY n",
        (run, host, now - lease),
    ).fetchall()
    dead = [id for id, pid in live if not process_lives(pid)]
    for id in dead:
        disown(db, run, id, now)
        db.execute(
            "UPDATE worker SET heartbeat = ?, updated_at = ? WHERE run = ? AND id = ?", (now - lease, now, run, id)
        )
    return dead


def process_lives(pid: int) -> bool:
    """False for a process that is gone, or ended and not yet reaped by its parent."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:
        return True


def put_service(db: sqlite3.Connection, run: str, service: InferenceService, doc: str, now: float) -> None:
    db.execute(
        """INSERT INTO service (run, url, kind, status, created_at, updated_at, doc) VALUES (?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, url) DO UPDATE SET kind = excluded.kind, status = excluded.status, doc = excluded.doc,
            updated_at = excluded.updated_at""",
        (run, service.url, service.kind, service.status.value, now, now, doc),
    )


def forget_state(db: sqlite3.Connection, run: str, key: str) -> None:
    db.execute("DELETE FROM state WHERE run = ? AND key = ?", (run, key))


def set_state(db: sqlite3.Connection, run: str, key: str, value: str, now: float) -> None:
    db.execute(
        """INSERT INTO state (run, key, value, created_at, updated_at) VALUES (?, ?, ?, ?, ?)
        ON CONFLICT (run, key) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at""",
        (run, key, value, now, now),
    )


def keep_state(db: sqlite3.Connection, run: str, key: str, value: str, now: float) -> str:
    db.execute(
        "INSERT INTO state (run, key, value, created_at, updated_at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        (run, key, value, now, now),
    )
    return db.execute("SELECT value FROM state WHERE run = ? AND key = ?", (run, key)).fetchone()["value"]


def get_state(db: sqlite3.Connection, run: str, key: str) -> str | None:
    row = db.execute("SELECT value FROM state WHERE run = ? AND key = ?", (run, key)).fetchone()
    return None if row is None else row["value"]


def verdict(db: sqlite3.Connection, run: str, task: str) -> str | None:
    row = db.execute("SELECT verdict FROM task WHERE run = ? AND id = ?", (run, task)).fetchone()
    return None if row is None else row["verdict"]


def row_states(db: sqlite3.Connection, run: str, task: str | None) -> list[sqlite3.Row]:
    return db.execute(
        """SELECT record, status, step, reason FROM data_row
        WHERE run = :run AND (:task IS NULL OR task = :task) ORDER BY n""",
        {"run": run, "task": task},
    ).fetchall()
