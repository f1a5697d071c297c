"""The rules of the store hold on seeded schedules, and a store that breaks one of them is found out."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from play import Score, main, play_seed, play_seeds, read_score
from store_documents import Clock
from world import MAX_ATTEMPTS, play

from agentrl.errors import StoreError
from agentrl.store import leases, records, registry, reuse, steps
from agentrl.store.sqlite import SqliteStore

PLAY = Path(__file__).with_name("play.py")


def test_the_rules_hold_on_two_hundred_schedules() -> None:
    score = play_seeds(range(200), Score())
    assert score.failed == {}
    assert set(score.faults) == {"request lost", "answer lost", "disk full"}


@pytest.mark.ci
@pytest.mark.timeout(900)
def test_the_rules_hold_on_two_thousand_schedules() -> None:
    assert play_seeds(range(1000, 3000), Score()).failed == {}


@pytest.mark.long
@pytest.mark.timeout(6 * 3600)
def test_the_rules_hold_on_a_hundred_thousand_schedules() -> None:
    assert play_seeds(range(100_000), Score()).failed == {}


@pytest.mark.parametrize("seed", range(8))
def test_the_rules_hold_on_a_file_with_its_threads(tmp_path: Path, seed: int) -> None:
    clock = Clock()
    store = SqliteStore(tmp_path / "run.db", run="run", clock=clock, max_attempts=MAX_ATTEMPTS)
    asyncio.run(play(store, clock, seed, check_every=5))


def test_a_seed_is_the_same_schedule_each_time_whatever_is_checked() -> None:
    with asyncio.Runner() as runner:
        first, again = (play_seed(runner, 17, check_every=every) for every in (1, 100))
        other = play_seed(runner, 18)
    assert first.trace == again.trace != other.trace
    assert first.now == again.now


# --- Stores that break a rule -----------------------------------------------------------------------------------------

NEVER = " AND updated_at < 0 "


def without(statement: str, condition: str, instead: str = "1") -> str:
    assert condition in statement
    return statement.replace(condition, instead)


def any_claim_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(db: Any, lease: leases.Lease) -> Any:
        return db.execute(
            "SELECT * FROM task WHERE run = :run AND id = :task AND status = 'running'", lease.values()
        ).fetchone()

    monkeypatch.setattr(leases, "held", held)
    monkeypatch.setattr(records, "held", held)


def a_group_may_be_finalised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(db: Any, lease: leases.Lease) -> Any:
        return db.execute(
            "SELECT * FROM task WHERE run = :run AND id = :task AND claim_no = :claim_no", lease.values()
        ).fetchone()

    monkeypatch.setattr(records, "held", held)


def late_records_are_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "keep_late_record", lambda *_: None)


def a_lost_lease_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "CLAIM", without(leases.CLAIM, leases.LOST, leases.LOST + NEVER))
    monkeypatch.setattr(leases, "POISON", without(leases.POISON, leases.LOST, leases.LOST + NEVER))


def admission_is_one_group_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ADMITTED", without(leases.ADMITTED, "seq <", "seq <="))


def other_lineages_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        steps, "DROP_OTHER_LINEAGES", without(steps.DROP_OTHER_LINEAGES, "RETURNING task", f"{NEVER}RETURNING task")
    )


def stale_rows_are_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "DROP_STALE", without(steps.DROP_STALE, "RETURNING task", f"{NEVER}RETURNING task"))


def a_step_that_was_taken_is_taken_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "has_taken", lambda *_: False)
    monkeypatch.setattr(steps, "require_new", lambda *_: None)


def an_ack_counts_what_it_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def ack(db: Any, run: str, step: int, now: float) -> int:
        return db.execute(
            "UPDATE data_row SET status = 'trained', trained_count = trained_count + 1, updated_at = ? "
            "WHERE run = ? AND step <= ? AND status IN ('taken', 'trained')",
            (now, run, step),
        ).rowcount

    monkeypatch.setattr(steps, "ack", ack)


def a_restore_leaves_later_steps_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "undo_uses", lambda *_: [])


def another_run_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    expire = leases.expire_records

    def of_all_runs(db: Any, task: Any, now: float) -> None:
        expire(db, task, now)
        db.execute("UPDATE record SET updated_at = ? WHERE run <> ?", (now, task["run"]))

    monkeypatch.setattr(leases, "expire_records", of_all_runs)


def an_epoch_is_pushed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    add = registry.add_tasks

    def twice(db: Any, run: str, packed: Any, now: float) -> int:
        db.execute("DELETE FROM task WHERE run = ? AND status = 'created'", (run,))
        return add(db, run, packed, now)

    monkeypatch.setattr(registry, "add_tasks", twice)


BREAKAGES = {
    any_claim_writes: "UNIQUE constraint failed: record|a finished record is lost",
    a_group_may_be_finalised_again: "UNIQUE constraint failed: data_row",
    late_records_are_thrown_away: "a finished record is lost",
    a_lost_lease_is_kept: "the run does not come to its end",
    admission_is_one_group_too_wide: "a group was admitted too early",
    other_lineages_are_trained: "a row of weights that are no ancestors is trained",
    stale_rows_are_trained: "a stale row is trained",
    a_step_that_was_taken_is_taken_anew: "a step has too many groups",
    an_ack_counts_what_it_counted: "what was counted is not what is there|how often it was trained",
    a_restore_leaves_later_steps_trained: "how often it was trained",
    another_run_is_touched: "another run was touched",
    an_epoch_is_pushed_again: "what was counted is not what is there",
}
"""What a broken store does, and what is said of it."""


@pytest.mark.parametrize(("breakage", "what"), BREAKAGES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_a_broken_rule_is_found_within_forty_schedules(
    monkeypatch: pytest.MonkeyPatch, breakage: Callable[[pytest.MonkeyPatch], None], what: str
) -> None:
    breakage(monkeypatch)
    with asyncio.Runner() as runner, pytest.raises((AssertionError, StoreError), match=what) as found:
        play_until_broken(runner)
    assert any(note.startswith("schedule ") for note in found.value.__notes__)


def play_until_broken(runner: asyncio.Runner) -> None:
    for seed in range(40):
        play_seed(runner, seed, check_every=10)


# --- The command ------------------------------------------------------------------------------------------------------


def test_many_schedules_go_on_where_they_stopped(tmp_path: Path) -> None:
    record = tmp_path / "schedules.json"
    for count in (2, 3):
        done = subprocess.run(
            [sys.executable, PLAY, "--schedules", str(count), "--record", record], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"{count} schedules, 0 failed")
    assert read_score(record).schedules == 3


def test_a_failed_seed_is_noted_and_can_be_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late_records_are_thrown_away(monkeypatch)
    record = tmp_path / "schedules.json"
    monkeypatch.setattr(sys, "argv", ["play.py", "--schedules", "40", "--record", str(record)])
    assert main() == 1
    seed, what = next(iter(read_score(record).failed.items()))
    assert what.startswith("AssertionError: a finished record is lost")
    monkeypatch.setattr(sys, "argv", ["play.py", "--seed", seed])
    with pytest.raises(AssertionError, match="a finished record is lost"):
        main()
