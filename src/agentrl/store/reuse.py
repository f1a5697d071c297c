"""SQL of reuse: trained groups that a later step may train again, and how many fresh groups that needs.

A group is trained ``max_trained_count`` times, ``retrained_interval`` steps apart. Its rows stay ``trained`` in
between: ``step`` is that of their last use, and ``group_use`` knows all of them, so a rewind finds each row as it was.
Rows too old for another use stay trained, and say so in ``reason``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import asdict

from agentrl.store.base import TakeRule

WANTED = "wanted"
"""Counter of the train split: how many fresh groups the steps need up to the one that was last asked for."""

LEFT = "status = 'trained' AND reason = '' AND trained_count < :max_trained_count"

RETIRE = f"""UPDATE data_row INDEXED BY row_by_step SET reason = 'stale', judged_at = :step, updated_at = :now
WHERE run = :run AND step >= :step - 1 - :drop_staleness AND {LEFT} AND :step - 1 - :drop_staleness >
    (SELECT step FROM version WHERE version.run = :run AND version.version = data_row.start_version)"""
"""A row is older than its last use, so that what may still be young was used within ``drop_staleness`` steps."""

LAST_USED = f"""SELECT DISTINCT seq, task FROM data_row INDEXED BY row_by_step
WHERE run = :run AND step BETWEEN :step - :drop_staleness AND :last_use AND {LEFT} {{order}}
ORDER BY seq LIMIT :num_groups"""

USES_LEFT = """SELECT 1 FROM data_row INDEXED BY row_by_step
WHERE run = :run AND step > :step - :drop_staleness AND status IN ('taken', 'trained') AND reason = ''
    AND trained_count + (status = 'taken') < :max_trained_count AND :step - :drop_staleness <=
    (SELECT step FROM version WHERE version.run = :run AND version.version = data_row.start_version) LIMIT 1"""


def retire_stale(db: sqlite3.Connection, run: str, rule: TakeRule, now: float) -> None:
    """Rows that have become too old are not trained again; what they were trained for stays."""
    if rule.max_trained_count > 1:
        db.execute(RETIRE, asdict(rule) | {"run": run, "now": now})


def due_groups(db: sqlite3.Connection, run: str, rule: TakeRule, order: str) -> list[tuple[int, str]]:
    """(seq, task) of groups whose interval is over, lowest ``seq`` first; ``order`` is a further condition."""
    return used_until(db, run, rule, rule.step - rule.retrained_interval, order)


def groups_before_due(db: sqlite3.Connection, run: str, rule: TakeRule) -> list[tuple[int, str]]:
    """When nothing else is left to train: an interval is counted in steps, and none would pass."""
    return used_until(db, run, rule, rule.step - 1, "")


def used_until(db: sqlite3.Connection, run: str, rule: TakeRule, last_use: int, order: str) -> list[tuple[int, str]]:
    if rule.max_trained_count == 1:
        return []
    values = asdict(rule) | {"run": run, "last_use": last_use}
    return [(seq, task) for seq, task in db.execute(LAST_USED.format(order=order), values)]


def uses_left(db: sqlite3.Connection, run: str, rule: TakeRule) -> bool:
    """Whether the step after ``rule.step`` finds anything to train again."""
    if rule.max_trained_count == 1:
        return False
    return db.execute(USES_LEFT, asdict(rule) | {"run": run}).fetchone() is not None


def use(db: sqlite3.Connection, run: str, rule: TakeRule, tasks: Iterable[str], now: float) -> None:
    """Mark the live rows of ``tasks`` as taken, and note the use."""
    for task in tasks:
        values = asdict(rule) | {"run": run, "now": now, "task": task}
        db.execute(
            f"""UPDATE data_row SET status = 'taken', step = :step, updated_at = :now
            WHERE run = :run AND task = :task AND (status = 'ready' OR {LEFT})""",
            values,
        )
        db.execute(
            """INSERT INTO group_use (run, task, number, step) SELECT :run, :task, count(*) + 1, :step
            FROM group_use WHERE run = :run AND task = :task""",
            values,
        )


def forget_unused(db: sqlite3.Connection, run: str, tasks: Iterable[str]) -> None:
    """A use of which no row is left was none."""
    for task in set(tasks):
        db.execute(
            """DELETE FROM group_use WHERE run = :run AND task = :task AND step > coalesce(
                (SELECT max(step) FROM data_row WHERE run = :run AND task = :task), -1)""",
            {"run": run, "task": task},
        )


def ask_for_fresh(db: sqlite3.Connection, run: str, rule: TakeRule, num_due: int) -> None:
    """Admit the fresh groups without which the step cannot be filled.

    Admission reckons with groups that are trained again in the order of ``seq``. Where stragglers have moved uses to
    other steps, fewer groups may be due than it thought, and trainer and samplers would wait for each other.
    """
    if rule.max_trained_count == 1:
        return
    db.execute(
        """INSERT INTO counter (run, split, name, reason, num)
        SELECT :run, 'train', :wanted, '', :more + coalesce((SELECT num FROM counter
            WHERE run = :run AND split = 'train' AND name = 'fresh_taken' AND reason = ''), 0) WHERE true
        ON CONFLICT (run, split, name, reason) DO UPDATE SET num = excluded.num WHERE num <> excluded.num""",
        {"run": run, "wanted": WANTED, "more": rule.num_groups - num_due},
    )


def ask_for_nothing(db: sqlite3.Connection, run: str) -> None:
    db.execute("DELETE FROM counter WHERE run = ? AND split = 'train' AND name = ?", (run, WANTED))


def undo_uses(db: sqlite3.Connection, run: str, step: int, now: float) -> list[tuple[str, str]]:
    """(task, record) of the rows that steps later than ``step`` used; each is again what its earlier uses left."""
    values = {"run": run, "step": step, "now": now}
    ask_for_nothing(db, run)
    db.execute("DELETE FROM group_use WHERE run = :run AND step > :step", values)
    undone = db.execute(
        """UPDATE data_row SET (status, trained_count, step) = (
            SELECT iif(count(*), 'trained', 'ready'), count(*), max(group_use.step) FROM group_use
            WHERE group_use.run = data_row.run AND group_use.task = data_row.task), updated_at = :now
        WHERE run = :run AND status IN ('taken', 'trained') AND step > :step RETURNING task, record""",
        values,
    ).fetchall()
    db.execute(
        """UPDATE data_row SET judged_at = NULL, reason = iif(status = 'dropped', reason, '')
        WHERE run = :run AND judged_at > :step""",
        values,
    )
    return [(task, record) for task, record in undone]
