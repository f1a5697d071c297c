"""SQL of refills: how many of the groups that ended with nothing to train are replaced, and steps that stay short.

A step of G groups may lose ``max_refills`` of those that are played for it and still be full. What it loses beyond
that are places it leaves free: it is trained with fewer groups (``short``), and left out when none is there
(``left_out``). Every loss is counted to one step (``charged``). All three are counters by step, so that a rewind gives
back what later steps were charged.
"""

from __future__ import annotations

import sqlite3

from agentrl.store.base import SET_ASIDE, TakeRule

CHARGED, SHORT, LEFT_OUT = "charged", "short", "left_out"
"""Counters of the train split, by step."""


def waits_for_more(db: sqlite3.Connection, run: str, rule: TakeRule, num_ready: int) -> bool:
    """Whether a step that has ``num_ready`` groups may be filled up further."""
    return rule.max_refills is None or num_ready + lost(db, run) < rule.num_groups + rule.max_refills


def charge(db: sqlite3.Connection, run: str, rule: TakeRule, *, num_free: int) -> None:
    """Count to the step what it lost; ``num_free`` of its places were not filled again."""
    if rule.max_refills is None:
        return
    add(db, run, CHARGED, rule.step, min(lost(db, run), rule.max_refills + num_free))
    add(db, run, LEFT_OUT if num_free == rule.num_groups else SHORT, rule.step, num_free)


def lost(db: sqlite3.Connection, run: str) -> int:
    """Groups that ended with nothing to train and are not counted to a step yet."""
    (num,) = db.execute(
        """SELECT coalesce(sum(iif(name = :charged, -num, num)), 0) FROM counter
        WHERE run = :run AND split = 'train' AND name IN ('abandoned', 'empty', :charged)
        AND NOT (name = 'abandoned' AND reason = :set_aside)""",
        {"run": run, "charged": CHARGED, "set_aside": SET_ASIDE},
    ).fetchone()
    return num


def of_step(db: sqlite3.Connection, run: str, step: int) -> dict[str, int]:
    """``lost``, ``short`` and ``left_out`` of ``step``."""
    found = db.execute(
        "SELECT name, num FROM counter WHERE run = ? AND split = 'train' AND name IN (?, ?, ?) AND reason = ?",
        (run, CHARGED, SHORT, LEFT_OUT, str(step)),
    )
    counts = dict(found.fetchall())
    return {"lost": counts.get(CHARGED, 0), "short": counts.get(SHORT, 0), "left_out": counts.get(LEFT_OUT, 0)}


def forget_after(db: sqlite3.Connection, run: str, step: int) -> None:
    """Steps later than ``step`` are made again."""
    db.execute(
        "DELETE FROM counter WHERE run = ? AND split = 'train' AND name IN (?, ?, ?) AND CAST(reason AS INTEGER) > ?",
        (run, CHARGED, SHORT, LEFT_OUT, step),
    )


def add(db: sqlite3.Connection, run: str, name: str, step: int, num: int) -> None:
    if num:
        db.execute(
            """INSERT INTO counter (run, split, name, reason, num) VALUES (?, 'train', ?, ?, ?)
            ON CONFLICT (run, split, name, reason) DO UPDATE SET num = num + excluded.num""",
            (run, name, str(step), num),
        )
