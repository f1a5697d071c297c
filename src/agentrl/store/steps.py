"""SQL of the trainer's side: take, ack, drop, rewind, and what becomes of a group that has nothing left to train.

Rows are judged when they are taken: a group of which a version outside the trainer's lineage sampled any row is
``ancestor``, a row sampled too many steps ago is ``stale``. A group left without live rows runs again: under a new
``seq`` when it went stale (at most ``max_attempts`` times), under its old one when its lineage ended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping

from agentrl.errors import StoreError
from agentrl.store import counters, refills, reuse
from agentrl.store.base import TakeRule

END_OF_STREAM = "end_of_stream/"

ANCESTORS = """WITH RECURSIVE ancestor (version) AS (
    SELECT :version UNION SELECT version.parent FROM version JOIN ancestor
    ON version.run = :run AND version.version = ancestor.version WHERE version.parent >= :oldest)"""
"""Of the trainer's version, as far back as ``oldest``."""

DROP_OTHER_LINEAGES = f"""{ANCESTORS}
UPDATE data_row SET status = 'dropped', reason = 'ancestor', step = NULL, judged_at = :step, updated_at = :now
WHERE run = :run AND status = 'ready' AND task IN (SELECT task FROM data_row WHERE run = :run AND status = 'ready'
    AND EXISTS (SELECT 1 FROM json_each(version_set) WHERE value NOT IN (SELECT version FROM ancestor)))
RETURNING task"""
"""Whole groups: siblings of a row from another lineage were judged against it, so the group is played again."""

READY = """WITH RECURSIVE ready (first) AS (
    SELECT min(start_version) FROM data_row INDEXED BY row_by_age WHERE run = :run AND status = 'ready' UNION ALL
    SELECT (SELECT min(start_version) FROM data_row INDEXED BY row_by_age
            WHERE run = :run AND status = 'ready' AND start_version > ready.first)
    FROM ready WHERE ready.first IS NOT NULL)"""
"""``start_version`` of the ready rows, by hopping from one to the next: a few versions, however many rows there are."""

READY_VERSIONS = f"""{READY} SELECT first, (SELECT max(end_version) FROM data_row INDEXED BY row_by_age
    WHERE run = :run AND status = 'ready' AND start_version = first) AS last FROM ready WHERE first IS NOT NULL"""

DROP_STALE = f"""{READY}
UPDATE data_row INDEXED BY row_by_age SET status = 'dropped', reason = 'stale', judged_at = :step, updated_at = :now
WHERE run = :run AND status = 'ready' AND start_version IN (SELECT first FROM ready WHERE :step - 1 - :drop_staleness >
    (SELECT step FROM version WHERE version.run = :run AND version.version = ready.first)) RETURNING task"""

Group = tuple[int, str]
"""(seq, task)"""

FIRST_UNFINISHED = """SELECT min(seq) FROM task
WHERE run = :run AND split = 'train' AND status IN ('created', 'running')"""


def take(db: sqlite3.Connection, run: str, rule: TakeRule, now: float, max_attempts: int) -> bool:
    """Mark the rows of the step; False while too few groups have finished.

    Raises ``StoreError`` when the step, or a later one, was trained already: a trainer that went back has to rewind.
    """
    require_published(db, run, rule.version)
    if has_taken(db, run, rule.step):
        return True
    require_new(db, run, rule.step)
    values = {"run": run, "now": now, "step": rule.step, "version": rule.version, "drop_staleness": rule.drop_staleness}
    dropped = drop_other_lineages(db, values)
    dropped += [task for (task,) in db.execute(DROP_STALE, values).fetchall()]
    run_again(db, run, dropped, now, max_attempts)
    reuse.retire_stale(db, run, rule, now)
    if has_too_few(db, run, rule):
        return False
    fresh, due = next_groups(db, run, rule)
    groups = sorted([*fresh, *due])[: rule.num_groups]
    num_free = rule.num_groups - len(groups)
    if num_free and stream_is_finished(db, run):
        num_free = 0
    elif num_free and refills.waits_for_more(db, run, rule, len(groups)):
        reuse.ask_for_fresh(db, run, rule, len(due))
        return False
    refills.charge(db, run, rule, num_free=num_free)
    if num_free == rule.num_groups:
        return False
    chosen = [task for _, task in groups or reuse.groups_before_due(db, run, rule)]
    reuse.use(db, run, rule, chosen, now)
    counters.settle(db, run, chosen)
    return True


def has_taken(db: sqlite3.Connection, run: str, step: int) -> bool:
    found = db.execute("SELECT 1 FROM data_row WHERE run = ? AND step = ? AND status = 'taken' LIMIT 1", (run, step))
    return found.fetchone() is not None


def require_new(db: sqlite3.Connection, run: str, step: int) -> None:
    (newest,) = db.execute("SELECT max(step) FROM data_row WHERE run = ? AND step IS NOT NULL", (run,)).fetchone()
    if newest is not None and newest >= step:
        raise StoreError(
            f"rows were taken or trained for step {newest}, so step {step} cannot be taken; "
            f"call rewind({step - 1}, version) after restoring an earlier checkpoint"
        )


def require_published(db: sqlite3.Connection, run: str, version: int) -> None:
    known = db.execute("SELECT 1 FROM version WHERE run = ? AND version = ?", (run, version)).fetchone()
    if known is None:
        raise StoreError(f"version {version} was never published in run {run}; publish_version comes first")


def drop_other_lineages(db: sqlite3.Connection, values: Mapping[str, object]) -> list[str]:
    """Tasks of the rows dropped. Rows are looked at only while some of them may be of another lineage, which is soon
    after a restore."""
    ready = db.execute(READY_VERSIONS, values).fetchall()
    if not ready:
        return []
    oldest, newest = max(0, ready[0]["first"]), max(row["last"] for row in ready)
    values = {**values, "oldest": oldest}
    ancestors = {version for (version,) in db.execute(f"{ANCESTORS} SELECT version FROM ancestor", values)}
    if ancestors.issuperset(range(oldest, newest + 1)):
        return []
    return [task for (task,) in db.execute(DROP_OTHER_LINEAGES, values).fetchall()]


def has_too_few(db: sqlite3.Connection, run: str, rule: TakeRule) -> bool:
    """Told from the totals, for a trainer that asks again and again; False where only the groups themselves can say."""
    num_ready = counters.num_ready(db, run)
    return (
        rule.max_trained_count == 1
        and num_ready < rule.num_groups
        and refills.waits_for_more(db, run, rule, num_ready)
        and not stream_is_finished(db, run)
    )


def next_groups(db: sqlite3.Connection, run: str, rule: TakeRule) -> tuple[list[Group], list[Group]]:
    """Fresh groups and those due again, lowest ``seq`` first; in order, only those that no unfinished
    group precedes.

    The step takes the lowest ``seq`` of both. Fresh ones first would let the uses of a group wait, while samplers keep
    up, until its rows are too old; lowest first gives each group all its uses while it is young, and synchronous runs
    one order.
    """
    order = f"AND seq < coalesce(({FIRST_UNFINISHED}), 9223372036854775807)" if rule.in_order else ""
    found = db.execute(
        f"""SELECT DISTINCT seq, task FROM data_row WHERE run = :run AND status = 'ready' {order}
        ORDER BY seq LIMIT :num""",
        {"run": run, "num": rule.num_groups},
    )
    return [(seq, task) for seq, task in found], reuse.due_groups(db, run, rule, order)


def stream_is_finished(db: sqlite3.Connection, run: str) -> bool:
    """No train group is unfinished and none will be pushed."""
    ended = db.execute("SELECT 1 FROM state WHERE run = ? AND key = ?", (run, f"{END_OF_STREAM}train")).fetchone()
    return ended is not None and db.execute(FIRST_UNFINISHED, {"run": run}).fetchone()[0] is None


def nothing_follows(db: sqlite3.Connection, run: str, rule: TakeRule) -> bool:
    ready = db.execute("SELECT 1 FROM data_row WHERE run = ? AND status = 'ready' LIMIT 1", (run,)).fetchone()
    return ready is None and stream_is_finished(db, run) and not reuse.uses_left(db, run, rule)


def rows_of_step(db: sqlite3.Connection, run: str, step: int) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT * FROM data_row WHERE run = ? AND step = ? AND status = 'taken' ORDER BY seq, slot, n", (run, step)
    ).fetchall()


def dropped_at(db: sqlite3.Connection, run: str, step: int) -> dict[str, int]:
    """Rows judged away on the way to ``step``, by reason, over all its calls of take.

    ``trained_stale`` were trained before and are not trained again.
    """
    return dict(
        db.execute(
            """SELECT iif(status = 'trained', 'trained_' || reason, reason) AS why, count(*) FROM data_row
            WHERE run = ? AND judged_at = ? AND status IN ('dropped', 'trained') AND reason <> '' GROUP BY why""",
            (run, step),
        ).fetchall()
    )


def ack(db: sqlite3.Connection, run: str, step: int, now: float) -> int:
    trained = db.execute(
        "UPDATE data_row SET status = 'trained', trained_count = trained_count + 1, updated_at = ? "
        "WHERE run = ? AND step = ? AND status = 'taken' RETURNING task",
        (now, run, step),
    ).fetchall()
    counters.settle(db, run, (task for (task,) in trained))
    return len(trained)


def drop(db: sqlite3.Connection, run: str, rows: Iterable[str], reason: str, now: float) -> int:
    """Ready or taken rows are not trained; their groups are not run again. A group dropped whole was not used.

    Rows that an earlier step trained stay trained, and are not trained again.
    """
    tasks: list[str] = []
    for row in rows:
        tasks += [
            task
            for (task,) in db.execute(
                """UPDATE data_row SET reason = :reason, updated_at = :now,
                    status = iif(trained_count, 'trained', 'dropped'),
                    step = iif(trained_count, (SELECT max(u.step) FROM group_use AS u WHERE u.run = :run
                               AND u.task = data_row.task AND u.step < data_row.step), NULL)
                WHERE run = :run AND record = :record AND status IN ('ready', 'taken') RETURNING task""",
                {"run": run, "record": row, "reason": reason, "now": now},
            ).fetchall()
        ]
    counters.settle(db, run, tasks)
    reuse.forget_unused(db, run, tasks)
    return len(tasks)


def rewind(
    db: sqlite3.Connection, run: str, step: int, version: int, now: float, max_attempts: int
) -> Mapping[str, int]:
    """The trainer is at ``step`` with ``version``: what later steps did is undone, other lineages are dropped.

    Counts of rows: ``trained`` (taken for a step whose checkpoint was saved, not acknowledged), ``ready`` (of later
    steps, to be taken again, also those that earlier steps trained), ``dropped`` (no ancestor); ``groups_again`` run
    again under their old ``seq``.
    """
    require_published(db, run, version)
    values = {"run": run, "now": now, "step": step, "version": version}
    trained = db.execute(
        "UPDATE data_row SET status = 'trained', trained_count = trained_count + 1, updated_at = :now "
        "WHERE run = :run AND status = 'taken' AND step <= :step RETURNING task",
        values,
    ).fetchall()
    undone = reuse.undo_uses(db, run, step, now)
    refills.forget_after(db, run, step)
    counters.settle(db, run, (task for task, *_ in (*trained, *undone)))
    dropped = drop_other_lineages(db, values | {"step": None})
    again = run_again(db, run, set(dropped), now, max_attempts)
    kept = sum(
        db.execute("SELECT status <> 'dropped' FROM data_row WHERE run = ? AND record = ?", (run, record)).fetchone()[0]
        for _, record in undone
    )
    return {"trained": len(trained), "ready": kept, "dropped": len(dropped), "groups_again": again}


def run_again(db: sqlite3.Connection, run: str, tasks: Iterable[str], now: float, max_attempts: int) -> int:
    """Groups of ``tasks`` that have nothing left to train start a new round; returns how many."""
    ended = sorted(counters.settle(db, run, tasks), key=lambda task: seq_of(db, run, task))
    return sum(again_by_reason(db, {"run": run, "task": task, "now": now, "max": max_attempts}) for task in ended)


def seq_of(db: sqlite3.Connection, run: str, task: str) -> int:
    return db.execute("SELECT seq FROM task WHERE run = ? AND id = ?", (run, task)).fetchone()[0]


def again_by_reason(db: sqlite3.Connection, values: dict[str, object]) -> int:
    start = """UPDATE task SET status = 'created', reason = '', owner = '', verdict = NULL, claim_no = claim_no + 1,
        round = round + 1, phase = '', phase_reason = '', fruitless_claims = 0, updated_at = :now"""
    lineage_ended = db.execute(
        """SELECT 1 FROM data_row JOIN task ON task.run = data_row.run AND task.id = data_row.task
        WHERE data_row.run = :run AND data_row.task = :task AND data_row.round = task.round
        AND data_row.reason = 'ancestor' LIMIT 1""",
        values,
    ).fetchone()
    if lineage_ended:
        return db.execute(f"{start} WHERE run = :run AND id = :task", values).rowcount
    return db.execute(
        f"""{start}, times_stale = times_stale + 1,
        seq = 1 + (SELECT max(other.seq) FROM task AS other WHERE other.run = :run AND other.split = task.split)
        WHERE run = :run AND id = :task AND times_stale < :max""",
        values,
    ).rowcount
