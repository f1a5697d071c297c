"""SQL of what the owner of a claim writes: turns, terminal records, and the verdict that ends the group."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from agentrl.errors import LeaseLost, StoreError
from agentrl.store import codec, counters
from agentrl.store.leases import Lease, held, holds
from agentrl.types import DBRecordData, DispatchedSamplingTask, GroupVerdict, Record, RecordStatus, Split, TaskStatus


def append_turn(
    db: sqlite3.Connection, lease: Lease, turn: DispatchedSamplingTask, place: tuple[int, int], packed: tuple
) -> None:
    """Store a turn, and its record as running when this is its first; ``place`` is (slot, attempt).

    A turn that is stored again replaces itself and is spent once.
    """
    holds(db, lease)
    slot, attempt = place
    db.execute(
        """INSERT OR IGNORE INTO record (run, id, task, slot, attempt, claim_no, round, status, reason, created_at,
            updated_at, doc) SELECT run, :record, id, :slot, :attempt, :claim_no, round, 'running', '', :now, :now, '{}'
        FROM task WHERE run = :run AND id = :task""",
        lease.values() | {"record": turn.record, "slot": slot, "attempt": attempt},
    )
    is_new = db.execute(
        """INSERT INTO turn (run, record, turn, claim_no, status, created_at, updated_at, doc, prompt_ids, token_ids,
            logprobs) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, record, turn) DO NOTHING""",
        (lease.run, turn.record, turn.turn, lease.claim_no, turn.status, lease.now, lease.now, *packed),
    ).rowcount
    if is_new:
        counters.spend(db, lease.run, counters.cost_of(turn))
        return
    db.execute(
        """UPDATE turn SET claim_no = ?, status = ?, updated_at = ?, doc = ?, prompt_ids = ?, token_ids = ?,
            logprobs = ? WHERE run = ? AND record = ? AND turn = ?""",
        (lease.claim_no, turn.status, lease.now, *packed, lease.run, turn.record, turn.turn),
    )


def finish_record(db: sqlite3.Connection, lease: Lease, record: Record, doc: str) -> LeaseLost | None:
    """Store a terminal record. A late owner's is kept as expired, and the error its caller has to see is returned:
    returned, because raising would take the record back."""
    task = held(db, lease)
    if task is None:
        keep_late_record(db, lease, record, doc)
        return lease.lost(db)
    values = record_values(lease, record, doc) | {"round": task["round"]}
    updated = db.execute(
        """UPDATE record SET status = :status, reason = :reason, outcome = :outcome, score = :score, doc = :doc,
            updated_at = :now WHERE run = :run AND id = :id AND status <> 'expired'""",
        values,
    ).rowcount
    if not updated:
        insert_record(db, values)
    db.execute("UPDATE task SET fruitless_claims = 0 WHERE n = ? AND fruitless_claims > 0", (task["n"],))
    return None


def keep_late_record(db: sqlite3.Connection, lease: Lease, record: Record, doc: str) -> None:
    """Of its own record a late owner may complete the facts; of another's it may change nothing.

    A slot that was judged without the result keeps its judgement, and gets the result.
    """
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
            """UPDATE record SET status = :status, reason = :reason, outcome = :outcome, score = :score, doc = :doc,
                updated_at = :now WHERE run = :run AND id = :id AND claim_no = :claim_no""",
            values,
        )
    else:
        db.execute(
            """UPDATE record SET reason = reason || '; ' || :reason, outcome = :outcome, score = :score, doc = :doc,
                updated_at = :now WHERE run = :run AND id = :id AND claim_no = :claim_no AND outcome IS NULL""",
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
        "score": record.score,
        "doc": doc,
    }


def insert_record(db: sqlite3.Connection, values: dict[str, object]) -> None:
    db.execute(
        """INSERT INTO record (run, id, task, slot, attempt, claim_no, round, status, reason, outcome, score,
            created_at, updated_at, doc)
        VALUES (:run, :id, :task, :slot, :attempt, :claim_no, :round, :status, :reason, :outcome, :score, :now, :now,
            :doc)""",
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
    phase = "ready" if rows else "empty" if verdict.status is TaskStatus.COMPLETED else ""
    db.execute(
        "UPDATE task SET status = ?, reason = ?, verdict = ?, phase = ?, owner = '', updated_at = ? WHERE n = ?",
        (verdict.status.value, codec.text(verdict.reason), verdict_text, phase, lease.now, task["n"]),
    )
    if task["split"] == Split.TRAIN:
        counters.note_pass_rate(db, task)
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
