"""SQL of groups that nobody is to play for now: set aside under a reason, and taken back."""

from __future__ import annotations

import sqlite3


def set_aside(db: sqlite3.Connection, run: str, split: str, reason: str, now: float) -> int:
    """Only groups that nobody has claimed; those under way are finished."""
    return db.execute(
        """UPDATE task SET status = 'abandoned', reason = :reason, updated_at = :now
        WHERE run = :run AND split = :split AND status = 'created'""",
        {"run": run, "split": split, "reason": reason, "now": now},
    ).rowcount


def take_back(db: sqlite3.Connection, run: str, split: str, reason: str, now: float) -> int:
    """Under their old ``seq``."""
    return db.execute(
        """UPDATE task SET status = 'created', reason = '', updated_at = :now
        WHERE run = :run AND split = :split AND status = 'abandoned' AND reason = :reason""",
        {"run": run, "split": split, "reason": reason, "now": now},
    ).rowcount
