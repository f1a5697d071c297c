"""SQL of claims: admission, leases, attempts, and the fencing token that every write of an owner carries."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.errors import LeaseLost
from agentrl.store.base import Admission, RunningGroup
from agentrl.types import Split, TaskStatus

LOST = """task INDEXED BY task_by_owner WHERE run = :run AND split = :split AND status = 'running'
    AND owner IN (SELECT '' UNION ALL SELECT id FROM worker WHERE run = :run
                  AND NOT (heartbeat > :now - :lease AND heartbeat < :now + :lease))"""
"""Running groups without a valid lease, found by the owners that are gone: groups of live ones are not looked at.

A heartbeat from the future (the clock was set back) is no lease for ever, so age counts in both directions.
"""

ADMITTED = """seq < (SELECT max(
        :groups_per_step * (steps / (:uses * :interval) * :interval + min(steps % (:uses * :interval), :interval)),
        coalesce((SELECT num FROM counter WHERE run = :run AND split = 'train' AND name = 'wanted' AND reason = ''), 0))
    FROM (SELECT step + :max_staleness + 1 AS steps FROM version WHERE run = :run ORDER BY position DESC LIMIT 1))
    + (SELECT coalesce(sum(num), 0) FROM counter WHERE run = :run AND split = 'train'
       AND name IN ('abandoned', 'empty', 'dropped', 'pushed_again'))
    - (SELECT coalesce(sum(num), 0) FROM counter WHERE run = :run AND split = 'train' AND name = 'short')"""
"""Groups that the steps up to (published step + S + 1) take for the first time + abandoned + dropped - short; NULL, so
not true, before a version is published.

Steps take G fresh groups each, unless groups are used several times: then only the first ``interval`` of every
``uses * interval`` steps do. ``wanted`` (``reuse.ask_for_fresh``) corrects what stragglers have moved. Dropped are the
groups that leave nothing to train: finished without rows, all rows dropped, or pushed again as stale. Short are the
places that trained steps left free (``refills``).
"""

FREE = f"""SELECT n FROM (
    SELECT * FROM (SELECT n, seq FROM task WHERE run = :run AND split = :split AND status = 'created'
                   ORDER BY seq LIMIT 1)
    UNION ALL
    SELECT * FROM (SELECT n, seq FROM {LOST} ORDER BY seq LIMIT 1))
    WHERE {{admitted}} ORDER BY seq LIMIT 1"""

CLAIM = f"""UPDATE task SET status = 'running', claim_no = claim_no + 1, owner = :worker,
    fruitless_claims = fruitless_claims + 1, updated_at = :now WHERE n = ({FREE}) RETURNING *"""

POISON = f"""UPDATE task SET status = 'abandoned', reason = 'poison', owner = '', updated_at = :now
    WHERE n IN (SELECT n FROM {LOST} AND fruitless_claims >= :max_attempts) RETURNING *"""


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
        return CLAIM.format(admitted="true"), values
    pace = {
        "groups_per_step": admission.groups_per_step,
        "max_staleness": admission.max_staleness,
        "uses": admission.max_trained_count,
        "interval": admission.retrained_interval,
    }
    return CLAIM.format(admitted=ADMITTED), values | pace


def abandon_poison(db: sqlite3.Connection, values: dict) -> None:
    """A group whose owners die again and again without one finished record is set aside, and says so."""
    for row in db.execute(POISON, values).fetchall():
        expire_records(db, row, values["now"])


def expire_records(db: sqlite3.Connection, task: sqlite3.Row, now: float) -> None:
    """What the former owner had begun is over; its turns stay, and what it still sends is kept as expired."""
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


def running_groups(db: sqlite3.Connection, run: str, now: float) -> list[RunningGroup]:
    """A slot is done when its last attempt of this round has a terminal record."""
    found = db.execute(
        """SELECT id, split, owner, num_slots, updated_at,
            (SELECT count(*) FROM (SELECT status, max(n) FROM record WHERE run = task.run AND task = task.id
             AND round = task.round GROUP BY slot) WHERE status NOT IN ('running', 'expired')) AS num_done
        FROM task INDEXED BY task_by_owner WHERE run = ? AND status = 'running' ORDER BY updated_at, n""",
        (run,),
    )
    return [
        RunningGroup(
            task=row["id"],
            split=Split(row["split"]),
            owner=row["owner"],
            num_slots=row["num_slots"],
            num_done=row["num_done"],
            age_seconds=now - row["updated_at"],
        )
        for row in found
    ]


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
