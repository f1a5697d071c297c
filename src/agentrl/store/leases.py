"""SQL of claims: admission, leases, attempts, and the fencing token that every write of an owner carries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import codec
from agentrl.store.base import Admission
from agentrl.types import DBRecordData, DispatchedSamplingTask, GroupVerdict, Record, RecordStatus, Split, TaskStatus

LEASE_IS_VALID = """EXISTS (SELECT 1 FROM worker WHERE worker.run = task.run AND worker.id = task.owner
    AND worker.heartbeat > :now - :lease AND worker.heartbeat < :now + :lease)"""
"""A heartbeat from the future (the clock was set back) is no lease for ever, so age counts in both directions."""

ADMITTED = """seq < (SELECT (step + :max_staleness + 1) * :groups_per_step FROM version
                     WHERE run = :run ORDER BY position DESC LIMIT 1)
    + (SELECT count(*) FROM task WHERE run = :run AND split = 'train' AND status = 'abandoned')
    + (SELECT count(*) FROM task WHERE run = :run AND split = 'train' AND status = 'completed' AND num_live = 0)
    + (SELECT coalesce(sum(times_stale), 0) FROM task WHERE run = :run AND split = 'train' AND times_stale > 0)"""
"""(published step + S + 1) * G + abandoned + dropped; NULL, so not true, before a version is published.

Dropped are the groups that leave nothing to train: finished without rows, all rows dropped, or pushed again as stale.
"""

FREE = """SELECT n FROM (
    SELECT * FROM (SELECT n, seq FROM task WHERE run = :run AND split = :split AND status = 'created' AND num_live = 0
                   ORDER BY seq LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT n, seq FROM task WHERE run = :run AND split = :split AND status = 'running' AND num_live = 0
                   AND NOT {lease} ORDER BY seq LIMIT 1))
    WHERE {admitted} ORDER BY seq LIMIT 1"""

CLAIM = f"""UPDATE task SET status = 'running', claim_no = claim_no + 1, owner = :worker,
    fruitless_claims = fruitless_claims + 1, updated_at = :now WHERE n = ({FREE}) RETURNING *"""

POISON = f"""UPDATE task SET status = 'abandoned', reason = 'poison', owner = '', updated_at = :now
    WHERE run = :run AND split = :split AND status = 'running' AND num_live = 0
    AND fruitless_claims >= :max_attempts AND NOT {LEASE_IS_VALID} RETURNING id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """What the owner of a claim shows with every write."""

    run: str
    task: str
    claim_no: int
    now: float

    def values(self) -> dict[str, object]:
        return {"run": self.run, "task": self.task, "claim_no": self.claim_no, "now": self.now}

    def lost(self, db: sqlite3.Connection) -> LeaseLost:
        row = db.execute("SELECT * FROM task WHERE run = :run AND id = :task", self.values()).fetchone()
        if row is None:
            return LeaseLost(f"{self.task} is not in run {self.run}")
        state = f"{row['status']}, claim {row['claim_no']}" + (f" of {row['owner']}" if row["owner"] else "")
        return LeaseLost(f"claim {self.claim_no} of {self.task} is over; the group is now {state}")


def claim(
    db: sqlite3.Connection,
    *,
    run: str,
    worker: str,
    splits: Sequence[Split],
    admission: Admission | None,
    now: float,
    lease_seconds: float,
    max_attempts: int,
) -> tuple[sqlite3.Row, list[sqlite3.Row]] | None:
    """Lease the next free group; return its task and the records of its present round."""
    values = {"run": run, "worker": worker, "now": now, "lease": lease_seconds, "max_attempts": max_attempts}
    for split in splits:
        values["split"] = str(split)
        abandon_poison(db, values)
        row = db.execute(*claim_statement(values, split, admission)).fetchone()
        if row is not None:
            expire_records(db, row, now)
            fail_exhausted_slots(db, row, now, max_attempts)
            return row, records_of(db, row)
    return None


def claim_statement(values: dict, split: Split, admission: Admission | None) -> tuple[str, dict]:
    if split != Split.TRAIN or admission is None:
        return CLAIM.format(lease=LEASE_IS_VALID, admitted="true"), values
    pace = {"groups_per_step": admission.groups_per_step, "max_staleness": admission.max_staleness}
    return CLAIM.format(lease=LEASE_IS_VALID, admitted=ADMITTED), values | pace


def abandon_poison(db: sqlite3.Connection, values: dict) -> None:
    """A group whose owners die again and again without one finished record is set aside, and says so."""
    for (task,) in db.execute(POISON, values).fetchall():
        db.execute(
            "UPDATE record SET status = 'abandoned', reason = 'poison', updated_at = :now "
            "WHERE run = :run AND task = :task AND status = 'running'",
            values | {"task": task},
        )


def expire_records(db: sqlite3.Connection, task: sqlite3.Row, now: float) -> None:
    """What the former owner had begun is over; its turns stay, its slot is run again."""
    db.execute(
        "UPDATE record SET status = 'expired', reason = 'lease lost', updated_at = ? "
        "WHERE run = ? AND task = ? AND status = 'running'",
        (now, task["run"], task["id"]),
    )


def fail_exhausted_slots(db: sqlite3.Connection, task: sqlite3.Row, now: float, max_attempts: int) -> None:
    """The last attempt of a slot that lost ``max_attempts`` of them becomes its terminal record."""
    db.execute(
        """UPDATE record SET status = 'failed', reason = 'no attempt of ' || :max || ' finished', updated_at = :now
        WHERE status = 'expired' AND n IN (
            SELECT max(n) FROM record WHERE run = :run AND task = :task AND round = :round GROUP BY slot
            HAVING count(*) >= :max AND sum(status NOT IN ('expired', 'failed')) = 0)""",
        {"max": max_attempts, "now": now, "run": task["run"], "task": task["id"], "round": task["round"]},
    )


def records_of(db: sqlite3.Connection, task: sqlite3.Row) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT * FROM record WHERE run = ? AND task = ? ORDER BY slot, attempt, n", (task["run"], task["id"])
    ).fetchall()


def append_turn(
    db: sqlite3.Connection, lease: Lease, turn: DispatchedSamplingTask, place: tuple[int, int], packed: tuple
) -> None:
    """Store a turn, and its record as running when this is its first; ``place`` is (slot, attempt)."""
    holds(db, lease)
    slot, attempt = place
    db.execute(
        """INSERT OR IGNORE INTO record (run, id, task, slot, attempt, claim_no, round, status, reason, created_at,
            updated_at, doc) SELECT run, :record, id, :slot, :attempt, :claim_no, round, 'running', '', :now, :now, '{}'
        FROM task WHERE run = :run AND id = :task""",
        lease.values() | {"record": turn.record, "slot": slot, "attempt": attempt},
    )
    db.execute(
        """INSERT INTO turn (run, record, turn, claim_no, status, created_at, updated_at, doc, prompt_ids, token_ids,
            logprobs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, record, turn) DO UPDATE SET claim_no = excluded.claim_no, status = excluded.status,
            updated_at = excluded.updated_at, doc = excluded.doc, prompt_ids = excluded.prompt_ids,
            token_ids = excluded.token_ids, logprobs = excluded.logprobs""",
        (lease.run, turn.record, turn.turn, lease.claim_no, turn.status, lease.now, lease.now, *packed),
    )


def holds(db: sqlite3.Connection, lease: Lease) -> sqlite3.Row:
    """The task's row; raises ``LeaseLost`` unless the claim is the newest and the group is running."""
    row = held(db, lease)
    if row is None:
        raise lease.lost(db)
    return row


def held(db: sqlite3.Connection, lease: Lease) -> sqlite3.Row | None:
    return db.execute(
        "SELECT * FROM task WHERE run = :run AND id = :task AND claim_no = :claim_no AND status = 'running'",
        lease.values(),
    ).fetchone()


def finish_record(db: sqlite3.Connection, lease: Lease, record: Record, doc: str) -> LeaseLost | None:
    """Store a terminal record. A late owner's is kept as expired, and the error its caller has to see is returned:
    returned, because raising would take the record back."""
    task = held(db, lease)
    if task is None:
        keep_late_record(db, lease, record, doc)
        return lease.lost(db)
    values = record_values(lease, record, doc) | {"round": task["round"]}
    updated = db.execute(
        """UPDATE record SET status = :status, reason = :reason, outcome = :outcome, doc = :doc, updated_at = :now
        WHERE run = :run AND id = :id AND status <> 'expired'""",
        values,
    ).rowcount
    if not updated:
        insert_record(db, values)
    db.execute("UPDATE task SET fruitless_claims = 0 WHERE n = ? AND fruitless_claims > 0", (task["n"],))
    return None


def keep_late_record(db: sqlite3.Connection, lease: Lease, record: Record, doc: str) -> None:
    """Of its own record a late owner may complete the facts; of another's it may change nothing."""
    values = record_values(lease, record, doc) | {
        "status": RecordStatus.EXPIRED.value,
        "reason": f"lease lost before it was {record.status.value}",
        "round": -1,
    }
    mine = db.execute(
        "SELECT status FROM record WHERE run = :run AND id = :id AND claim_no = :claim_no", values
    ).fetchone()
    if mine is None:
        insert_record(db, values)
    elif mine["status"] in ("running", "expired"):
        db.execute(
            """UPDATE record SET status = :status, reason = :reason, outcome = :outcome, doc = :doc, updated_at = :now
            WHERE run = :run AND id = :id AND claim_no = :claim_no""",
            values,
        )


def record_values(lease: Lease, record: Record, doc: str) -> dict[str, object]:
    return lease.values() | {
        "id": record.id,
        "slot": record.slot,
        "attempt": record.attempt,
        "status": record.status.value,
        "reason": codec.text(record.reason),
        "outcome": record.outcome and record.outcome.value,
        "doc": doc,
    }


def insert_record(db: sqlite3.Connection, values: dict[str, object]) -> None:
    db.execute(
        """INSERT INTO record (run, id, task, slot, attempt, claim_no, round, status, reason, outcome, created_at,
            updated_at, doc)
        VALUES (:run, :id, :task, :slot, :attempt, :claim_no, :round, :status, :reason, :outcome, :now, :now, :doc)""",
        values,
    )


def finalize_group(
    db: sqlite3.Connection,
    lease: Lease,
    verdict: GroupVerdict,
    verdict_text: str,
    rows: Sequence[tuple[DBRecordData, tuple]],
) -> bool:
    """Verdict, status and rows in one write, once. ``rows`` come with their packed columns."""
    task = held(db, lease)
    if task is None:
        done = db.execute(
            "SELECT 1 FROM task WHERE run = :run AND id = :task AND claim_no = :claim_no AND verdict IS NOT NULL",
            lease.values(),
        ).fetchone()
        if done is None:
            raise lease.lost(db)
        return False
    known = {id for (id,) in db.execute("SELECT id FROM record WHERE run = :run AND task = :task", lease.values())}
    for row, packed in rows:
        if row.record not in known:
            raise StoreError(f"row {row.id} has no record; finish_record comes before finalize_group")
        insert_row(db, lease, task, row, packed)
    db.execute(
        "UPDATE task SET status = ?, reason = ?, verdict = ?, num_live = ?, owner = '', updated_at = ? WHERE n = ?",
        (verdict.status.value, codec.text(verdict.reason), verdict_text, len(rows), lease.now, task["n"]),
    )
    db.execute(
        "UPDATE record SET status = 'abandoned', reason = 'group finalised without it', updated_at = :now "
        "WHERE run = :run AND task = :task AND status = 'running'",
        lease.values(),
    )
    return True


def insert_row(db: sqlite3.Connection, lease: Lease, task: sqlite3.Row, row: DBRecordData, packed: tuple) -> None:
    db.execute(
        """INSERT INTO data_row (run, record, task, seq, slot, round, status, trained_count, start_version, end_version,
            reward, created_at, updated_at, version_set, turns, token_ids, mask, versions, logprobs)
        VALUES (?, ?, ?, ?, ?, ?, 'ready', 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)""",
        (
            *(lease.run, row.record, row.task, task["seq"], row.slot, task["round"]),
            *(row.start_version, row.end_version, row.reward, lease.now, lease.now),
            *packed,
        ),
    )


def release(db: sqlite3.Connection, lease: Lease) -> None:
    """The group is free again, and this claim is not held against it."""
    task = held(db, lease)
    if task is None:
        finished = db.execute(
            "SELECT 1 FROM task WHERE run = :run AND id = :task AND claim_no = :claim_no AND status IN (:a, :b)",
            lease.values() | {"a": TaskStatus.COMPLETED.value, "b": TaskStatus.ABANDONED.value},
        ).fetchone()
        if finished is None:
            raise lease.lost(db)
        return
    free_task(db, task, lease.now)


def free_task(db: sqlite3.Connection, task: sqlite3.Row, now: float) -> None:
    """``claim_no`` grows, so that what the former owner still sends is refused; its attempts are not counted."""
    db.execute(
        """UPDATE task SET status = 'created', owner = '', claim_no = claim_no + 1,
            fruitless_claims = max(0, fruitless_claims - 1), updated_at = ? WHERE n = ?""",
        (now, task["n"]),
    )
    db.execute(
        "UPDATE record SET status = 'expired', reason = 'released', round = -1, updated_at = ? "
        "WHERE run = ? AND task = ? AND status = 'running'",
        (now, task["run"], task["id"]),
    )
