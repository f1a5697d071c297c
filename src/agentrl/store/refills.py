"""SQL of refills: how many of the groups that ended with nothing to train are replaced, and steps that stay short.

A step of G groups may lose ``max_refills`` of those that are played for it and still be full. What it loses beyond
that are places it leaves free: it is trained with fewer groups, and left out when none is there. Every loss is counted
to one step (``charged``); counters of the step hold it, so that a rewind gives back what later steps were charged.
"""

from __future__ import annotations

import sqlite3

from agentrl.store.base import TakeRule

CHARGED, SHORT = "charged", "short"
"""Counters of the train split, by step."""


def waits_for_more(db: sqlite3.Connection, run: str, rule: TakeRule, num_ready: int) -> bool:
    """Whether a step that has ``num_ready`` groups may be filled up further."""
    return rule.max_refills is None or num_ready + lost(db, run) < rule.num_groups + rule.max_refills


def charge(db: sqlite3.Connection, run: str, rule: TakeRule, *, num_free: int) -> None:
    """Count to the step what it lost; ``num_free`` of its places were not filled again."""
    if rule.max_refills is None:
        return
    add(db, run, CHARGED, rule.step, min(lost(db, run), rule.max_refills + num_free))
    add(db, run, SHORT, rule.step, num_free)


def lost(db: sqlite3.Connection, run: str) -> int:
    """Groups that ended with nothing to train and are not counted to a step yet."""
    (num,) = db.execute(
        """SELECT coalesce(sum(iif(name = :charged, -num, num)), 0) FROM counter
        WHERE run = :run AND split = 'train' AND name IN ('abandoned', 'empty', :charged)""",
        {"run": run, "charged": CHARGED},
    ).fetchone()
    return num


def of_step(db: sqlite3.Connection, run: str, step: int) -> tuple[int, int]:
    """Losses and free places of ``step``."""
    found = db.execute(
        "SELECT name, num FROM counter WHERE run = ? AND split = 'train' AND name IN (?, ?) AND reason = ?",
        (run, CHARGED, SHORT, str(step)),
    )
    counts = dict(found.fetchall())
    return counts.get(CHARGED, 0), counts.get(SHORT, 0)


def forget_after(db: sqlite3.Connection, run: str, step: int) -> None:
    """Steps later than ``step`` are made again."""
    db.execute(
        "DELETE FROM counter WHERE run = ? AND split = 'train' AND name IN (?, ?) AND CAST(reason AS INTEGER) > ?",
        (run, CHARGED, SHORT, step),
    )


def add(db: sqlite3.Connection, run: str, name: str, step: int, num: int) -> None:
    if num:
        db.execute(
            """INSERT INTO counter (run, split, name, reason, num) VALUES (?, 'train', ?, ?, ?)
            ON CONFLICT (run, split, name, reason) DO UPDATE SET num = num + excluded.num""",
            (run, name, str(step), num),
        )
