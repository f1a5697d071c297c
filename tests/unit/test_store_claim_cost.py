"""A claim costs the same in a long run as in a short one, counted in instructions of SQLite's machine, not in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.store import Admission, counters, leases, registry
from agentrl.store.schema import prepare
from agentrl.types import Split, Task, WeightVersion

GROUPS_PER_STEP = 8


@dataclass
class Instructions:
    count: int = 0

    def __call__(self) -> int:
        self.count += 1
        return 0

    def of(self, db: sqlite3.Connection, statement: Callable[[], object]) -> int:
        before = self.count
        db.set_progress_handler(self, 1)
        try:
            statement()
        finally:
            db.set_progress_handler(None, 1)
        return self.count - before


def run_with(path: Path, *, finished: int, running: int) -> sqlite3.Connection:
    """A run in which ``finished`` groups were trained, went stale or found no signal, and ``running`` are played."""
    db = prepare(path)
    num_tasks = finished + running + GROUPS_PER_STEP
    tasks = [(Task(task_id=f"q{number}", query="q", run="run"), "{}") for number in range(num_tasks)]
    db.execute("BEGIN")
    registry.add_tasks(db, "run", tasks, 0.0)
    db.execute(
        """UPDATE task SET claim_no = 1, times_stale = (seq % 7 = 0),
            status = CASE WHEN seq % 5 = 0 THEN 'abandoned' ELSE 'completed' END,
            phase = CASE WHEN seq % 5 = 0 THEN '' WHEN seq % 5 = 1 THEN 'empty' WHEN seq % 5 = 2 THEN 'dropped'
                         ELSE 'trained' END WHERE seq < ?""",
        (finished,),
    )
    db.execute(
        "UPDATE task SET status = 'running', owner = 'alive', claim_no = 1 WHERE seq BETWEEN ? AND ?",
        (finished, finished + running - 1),
    )
    registry.note_claimer(db, "run", "alive", 0.0)
    step = num_tasks // GROUPS_PER_STEP
    registry.publish_version(db, "run", WeightVersion(version=step, step=step, parent=None), "{}", 0.0)
    db.execute("COMMIT")
    return db


def claim(db: sqlite3.Connection) -> None:
    found = leases.claim(
        db,
        run="run",
        worker="alive",
        splits=(Split.EVAL, Split.TEST, Split.TRAIN),
        admission=Admission(groups_per_step=GROUPS_PER_STEP, max_staleness=1),
        now=1.0,
        lease_seconds=30.0,
        max_attempts=3,
    )
    assert found is not None


@pytest.mark.parametrize("grown", [{"finished": 20_000, "running": 5}, {"finished": 50, "running": 2_000}])
def test_a_claim_costs_the_same_behind_many_groups(tmp_path: Path, grown: dict[str, int]) -> None:
    instructions = Instructions()
    costs = []
    for name, size in (("small", {"finished": 50, "running": 5}), ("large", grown)):
        db = run_with(tmp_path / f"{name}.db", **size)
        costs.append(instructions.of(db, lambda db=db: claim(db)))
        db.close()
    assert costs[1] <= costs[0] * 1.05


def test_the_queue_is_read_and_not_counted(tmp_path: Path) -> None:
    instructions = Instructions()
    costs = []
    for finished in (50, 5_000):
        db = run_with(tmp_path / f"{finished}.db", finished=finished, running=5)
        costs.append(instructions.of(db, lambda db=db: counters.queue(db, "run", "train")))
        assert counters.queue(db, "run", "train").unfinished == GROUPS_PER_STEP + 5
        db.close()
    assert costs[0] == costs[1] < 1_000
