"""A claim, and asking for a step that is not full, cost the same in a long run as in a short one: counted in
instructions of SQLite's machine, not in time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.store import Admission, TakeRule, counters, leases, registry, steps
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


def run_with_ready(path: Path, *, ready: int, created: int, steps_done: int) -> sqlite3.Connection:
    """A run whose stream has ended, with ``ready`` groups of two rows that no step has taken, the last of them sampled
    by two versions, and ``created`` groups that nobody has claimed."""
    db = prepare(path)
    tasks = [(Task(task_id=f"q{number}", query="q", run="run"), "{}") for number in range(ready + created)]
    db.execute("BEGIN")
    for step in range(steps_done + 1):
        version = WeightVersion(version=step, step=step, parent=step - 1 if step else None)
        registry.publish_version(db, "run", version, "{}", 0.0)
    registry.add_tasks(db, "run", tasks, 0.0)
    db.execute(
        """INSERT INTO data_row (run, record, task, seq, slot, round, status, start_version, end_version, version_set,
            reward, created_at, updated_at, turns, token_ids, mask, versions, logprobs)
        SELECT run, task.id || '/' || slot.value, task.id, seq, slot.value, 0, 'ready', :step - (seq = :last), :step,
            iif(seq = :last, json_array(:step - 1, :step), json_array(:step)), 0, 0, 0, '[]', x'', x'', x'', x''
        FROM task, json_each('[0, 1]') AS slot WHERE seq <= :last""",
        {"step": steps_done, "last": ready - 1},
    )
    db.execute("UPDATE task SET status = 'completed', phase = 'ready' WHERE seq < ?", (ready,))
    registry.set_state(db, "run", f"{steps.END_OF_STREAM}train", "true", 0.0)
    db.execute("COMMIT")
    return db


@pytest.mark.parametrize(
    "grown", [{"ready": 2_000}, {"created": 5_000}, {"steps_done": 2_000}], ids=["ready", "created", "steps"]
)
@pytest.mark.parametrize("in_order", [False, True])
def test_asking_for_a_step_that_is_not_full_costs_the_same_in_a_long_run(
    tmp_path: Path, grown: dict[str, int], in_order: bool
) -> None:
    instructions, small = Instructions(), {"ready": 20, "created": 10, "steps_done": 4}
    costs = []
    for name, size in (("small", small), ("large", small | grown)):
        db = run_with_ready(tmp_path / f"{name}.db", **size)
        step = size["steps_done"]
        rule = TakeRule(step=step + 1, version=step, num_groups=size["ready"] + 1, in_order=in_order)

        def ask(db: sqlite3.Connection = db, rule: TakeRule = rule) -> None:
            assert not steps.take(db, "run", rule, 1.0, 3)

        costs.append(instructions.of(db, ask))
        db.close()
    assert costs[1] <= costs[0] * 1.05
