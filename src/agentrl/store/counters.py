"""SQL of running totals, kept in the transaction of what they count, so that no question is a walk over the run.

Triggers keep the number of groups in every state: whatever writes a task, the counters agree with the rows. ``phase``
of a task says what has become of its training rows (``ready``, ``taken``, ``trained``, ``dropped``, ``empty``: none).
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping

from agentrl.store.base import PassRate, QueueCounts
from agentrl.types import DispatchedSamplingTask, ResultStatus

TABLES = """
CREATE TABLE counter (
    run TEXT NOT NULL, split TEXT NOT NULL, name TEXT NOT NULL, reason TEXT NOT NULL, num INTEGER NOT NULL,
    PRIMARY KEY (run, split, name, reason)) WITHOUT ROWID;

CREATE TABLE pass_rate (
    run TEXT NOT NULL, task_id TEXT NOT NULL, num_groups INTEGER NOT NULL, num_scored INTEGER NOT NULL,
    score_sum REAL NOT NULL, last_score REAL, PRIMARY KEY (run, task_id)) WITHOUT ROWID;

CREATE TABLE spent (
    run TEXT NOT NULL, name TEXT NOT NULL, amount REAL NOT NULL, PRIMARY KEY (run, name)) WITHOUT ROWID;
"""


def change(row: str, name: str, num: str, reason: str = "''") -> str:
    return f"""INSERT INTO counter (run, split, name, reason, num)
        VALUES ({row}.run, {row}.split, {name}, {reason}, {num})
        ON CONFLICT (run, split, name, reason) DO UPDATE SET num = num + excluded.num;"""


def status_of(row: str, num: int) -> str:
    return change(row, f"{row}.status", str(num), f"iif({row}.status = 'abandoned', {row}.reason, '')")


def phase_of(row: str, num: int) -> str:
    return change(row, f"{row}.phase", str(num), f"{row}.phase_reason")


def use_of(row: str, num: int) -> str:
    """Uses are of the train split only."""
    return f"""INSERT INTO counter (run, split, name, reason, num) VALUES ({row}.run, 'train', 'fresh_taken', '', {num})
        ON CONFLICT (run, split, name, reason) DO UPDATE SET num = num + excluded.num;"""


TRIGGERS = (
    f"CREATE TRIGGER count_task AFTER INSERT ON task BEGIN {status_of('new', 1)} {phase_of('new', 1)} END",
    f"""CREATE TRIGGER count_status AFTER UPDATE OF status, reason ON task
        WHEN old.status <> new.status OR old.reason <> new.reason
        BEGIN {status_of("old", -1)} {status_of("new", 1)} END""",
    f"""CREATE TRIGGER count_phase AFTER UPDATE OF phase, phase_reason ON task
        WHEN old.phase <> new.phase OR old.phase_reason <> new.phase_reason
        BEGIN {phase_of("old", -1)} {phase_of("new", 1)} END""",
    f"""CREATE TRIGGER count_staleness AFTER UPDATE OF times_stale ON task
        WHEN old.times_stale <> new.times_stale
        BEGIN {change("new", "'pushed_again'", "new.times_stale - old.times_stale")} END""",
    f"CREATE TRIGGER count_use AFTER INSERT ON group_use WHEN new.number = 1 BEGIN {use_of('new', 1)} END",
    f"CREATE TRIGGER uncount_use AFTER DELETE ON group_use WHEN old.number = 1 BEGIN {use_of('old', -1)} END",
)


def queue(db: sqlite3.Connection, run: str, split: str) -> QueueCounts:
    counts: dict[str, dict[str, int]] = {}
    found = db.execute("SELECT name, reason, num FROM counter WHERE run = ? AND split = ? AND num <> 0", (run, split))
    for name, reason, num in found:
        counts.setdefault(name, {})[reason] = num

    def total(name: str) -> int:
        return sum(counts.get(name, {}).values())

    return QueueCounts(
        created=total("created"),
        running=total("running"),
        completed=total("completed"),
        abandoned=counts.get("abandoned", {}),
        empty=total("empty"),
        ready=total("ready"),
        taken=total("taken"),
        trained=total("trained"),
        dropped=counts.get("dropped", {}),
        pushed_again=total("pushed_again"),
        fresh_taken=total("fresh_taken"),
        charged=total("charged"),
        short=total("short"),
        left_out=total("left_out"),
    )


def num_ready(db: sqlite3.Connection, run: str) -> int:
    """Groups of the train split that wait to be taken."""
    (num,) = db.execute(
        "SELECT coalesce(sum(num), 0) FROM counter WHERE run = ? AND split = 'train' AND name = 'ready'", (run,)
    ).fetchone()
    return num


def settle(db: sqlite3.Connection, run: str, tasks: Iterable[str]) -> set[str]:
    """Bring ``phase`` of groups whose rows have changed up to date; returns those that have nothing left to train."""
    ended: set[str] = set()
    for task in set(tasks):
        (row,) = db.execute(
            """UPDATE task SET (phase, phase_reason) = (
                SELECT CASE WHEN sum(status = 'taken') THEN 'taken' WHEN sum(status = 'ready') THEN 'ready'
                            WHEN sum(status = 'trained') THEN 'trained' WHEN count(*) THEN 'dropped' ELSE 'empty' END,
                       CASE WHEN sum(status <> 'dropped') THEN '' ELSE coalesce(max(reason), '') END
                FROM data_row WHERE run = task.run AND task = task.id AND round = task.round)
            WHERE run = ? AND id = ? RETURNING phase""",
            (run, task),
        ).fetchall()
        if row["phase"] == "dropped":
            ended.add(task)
    return ended


# --- Pass rates ------------------------------------------------------------------------------------------------------


def note_pass_rate(db: sqlite3.Connection, task: sqlite3.Row) -> None:
    """Add a group that is finished now. One that was played again counts once, as it was played last."""
    scores, again = scores_of_round(db, task, task["round"]), task["round"] > 0
    before = scores_of_round(db, task, task["round"] - 1) if again else []
    mean = sum(scores) / len(scores) if scores else None
    db.execute(
        """INSERT INTO pass_rate (run, task_id, num_groups, num_scored, score_sum, last_score) VALUES (?, ?, ?, ?, ?, ?)
        ON CONFLICT (run, task_id) DO UPDATE SET num_groups = num_groups + excluded.num_groups,
            num_scored = num_scored + excluded.num_scored, score_sum = score_sum + excluded.score_sum,
            last_score = coalesce(excluded.last_score, last_score)""",
        (task["run"], task["task_id"], int(not again), len(scores) - len(before), sum(scores) - sum(before), mean),
    )


def scores_of_round(db: sqlite3.Connection, task: sqlite3.Row, number: int) -> list[float]:
    """Of each slot that of the newest scored attempt."""
    found = db.execute(
        """SELECT slot, max(attempt), score FROM record
        WHERE run = ? AND task = ? AND round = ? AND status = 'scored' AND score IS NOT NULL GROUP BY slot""",
        (task["run"], task["id"], number),
    )
    return [score for _, _, score in found]


def pass_rates(db: sqlite3.Connection, run: str) -> dict[str, PassRate]:
    found = db.execute("SELECT * FROM pass_rate WHERE run = ?", (run,))
    return {
        row["task_id"]: PassRate(
            num_groups=row["num_groups"],
            num_scored=row["num_scored"],
            mean_score=row["score_sum"] / row["num_scored"] if row["num_scored"] else None,
            last_score=row["last_score"],
        )
        for row in found
    }


# --- Spending --------------------------------------------------------------------------------------------------------


def cost_of(turn: DispatchedSamplingTask) -> dict[str, float]:
    """What one turn adds. A call that was refused before it reached its tool costs nothing."""
    called = Counter(result.name for result in turn.tool_results if result.status is not ResultStatus.REJECTED)
    return {
        "calls": 1,
        "prompt_tokens": len(turn.prompt_ids_delta),
        "sampled_tokens": len(turn.token_ids),
        **{f"calls/tool:{name}": num for name, num in called.items()},
    }


def spend(db: sqlite3.Connection, run: str, amounts: Mapping[str, float]) -> None:
    db.executemany(
        """INSERT INTO spent (run, name, amount) VALUES (?, ?, ?)
        ON CONFLICT (run, name) DO UPDATE SET amount = amount + excluded.amount""",
        [(run, name, amount) for name, amount in amounts.items()],
    )


def spending(db: sqlite3.Connection, run: str) -> dict[str, float]:
    return dict(db.execute("SELECT name, amount FROM spent WHERE run = ? ORDER BY name", (run,)).fetchall())
