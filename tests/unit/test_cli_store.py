"""``agentrl store``: which runs stores hold, and how one is deleted while the others stay as they are."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import pytest
from store_documents import record, row, turn

from agentrl.cli.main import main
from agentrl.errors import ConfigError
from agentrl.store import open_store
from agentrl.store.inventory import DROPPING, drop_run, holdings
from agentrl.types import GroupVerdict, InferenceService, Split, Task, WeightVersion, Worker

NUM_GROUPS = 3


def used_store(path: Path, *runs: str) -> Path:
    for run in runs:
        asyncio.run(play(path, run))
    return path


async def play(path: Path, run: str) -> None:
    """Some of everything, and nobody left alive."""
    store = open_store(f"sqlite:///{path}", run=run)
    await store.open()
    await store.publish_version(WeightVersion(version=0, step=0, parent=None))
    await store.put_service(InferenceService(url="http://e", kind="embedded", model="m"))
    await store.add_tasks([Task(task_id=f"q{i}", query="q", num_slots=1) for i in range(NUM_GROUPS)])
    await store.heartbeat(Worker(id="sampler", kind="sampler", host="far", pid=7))
    for _ in range(NUM_GROUPS):
        claim = await store.claim("sampler", splits=[Split.TRAIN])
        assert claim is not None
        done = record(claim, 0)
        await store.append_turn(claim, turn(done.id))
        await store.finish_record(claim, done)
        await store.finalize_group(claim, GroupVerdict(slots={0: 1.0}), [row(claim, done)])
    await store.set_state("note", "kept")
    await store.leave("sampler")
    await store.close()


def look_of(path: Path, run: str) -> dict[str, list[tuple]]:
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: db.execute(f"SELECT * FROM {name} WHERE run = ?", (run,)).fetchall() for name in tables}


def test_every_run_of_a_store_is_listed_with_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = used_store(tmp_path / "all.db", "first", "second")
    found = holdings(path)
    assert [each.run for each in found] == ["second", "first"]
    assert found[0].documents == {
        "DispatchedSamplingTask": 3,
        "DBRecordData": 3,
        "Record": 3,
        "Task": 3,
        "WeightVersion": 1,
        "InferenceService": 1,
        "Worker": 0,
    }
    assert 500 < found[0].num_bytes < path.stat().st_size + 50_000
    assert main(["store", "list", "--db_connection_string", f"sqlite:///{path}"]) == 0
    printed = capsys.readouterr().out
    assert "first" in printed
    assert "second" in printed


def test_the_stores_of_the_runs_below_the_output_folder_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    for run in ("a", "b"):
        used_store(tmp_path / "output" / run / "run.db", run)
    assert main(["store", "list", "--output_dir", str(tmp_path / "output")]) == 0
    printed = capsys.readouterr().out
    assert all(f"{run}/run.db" in printed.replace("\n", "") for run in ("a", "b"))
    assert main(["store", "list", "--output_dir", str(tmp_path / "none")]) == 2
    assert "no store below" in capsys.readouterr().err


def test_drop_deletes_one_run_with_yes_and_nothing_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = used_store(tmp_path / "all.db", "first", "second")
    before = {run: look_of(path, run) for run in ("first", "second")}
    where = ["--db_connection_string", f"sqlite:///{path}"]
    assert main(["store", "drop", "first", *where]) == 0
    assert "would delete run first" in capsys.readouterr().out
    assert look_of(path, "first") == before["first"]
    assert main(["store", "drop", "first", *where, "--yes"]) == 0
    assert "deleted run first" in capsys.readouterr().out
    assert not any(look_of(path, "first").values())
    assert look_of(path, "second") == before["second"]
    asyncio.run(play(path, "first"))
    assert len(look_of(path, "first")["task"]) == NUM_GROUPS


def test_more_rows_than_fit_one_transaction_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.store.inventory.ROWS_AT_ONCE", 2)
    path = used_store(tmp_path / "all.db", "first")
    assert drop_run(path, "first") == 3 * 4 + 2
    assert not any(look_of(path, "first").values())


def test_a_run_that_is_alive_is_not_deleted(tmp_path: Path) -> None:
    path = used_store(tmp_path / "all.db", "first")
    before = look_of(path, "first")

    async def live() -> None:
        store = open_store(f"sqlite:///{path}", run="first")
        await store.open()
        await store.heartbeat(Worker(id="trainer", kind="trainer", host="far", pid=9))
        await store.close()

    asyncio.run(live())
    with pytest.raises(ConfigError, match=r"first is alive: trainer \(process 9 on far\) was heard of within .* 30 s"):
        drop_run(path, "first")
    assert look_of(path, "first")["task"] == before["task"]
    assert drop_run(path, "first", clock=lambda: time.time() + 31) > 0


def test_a_run_that_is_half_deleted_cannot_be_opened_and_is_finished_by_asking_again(tmp_path: Path) -> None:
    path = used_store(tmp_path / "all.db", "first")
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO state VALUES ('first', ?, 'true', 0, 0)", (DROPPING,))
        db.execute("DELETE FROM turn")
    (held,) = holdings(path)
    assert held.dropping
    with pytest.raises(ConfigError, match=r"first is being deleted.*agentrl store drop first"):
        asyncio.run(play(path, "first"))
    drop_run(path, "first")
    asyncio.run(play(path, "first"))


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["store"], "list or drop RUN"),
        (["store", "lst"], "did you mean list"),
        (["store", "drop"], "which run?"),
        (["store", "drop", "gone", "--db_connection_string", "STORE"], "no run 'gone'"),
        (["store", "list", "--db_connection_string", "sqlite:///none.db"], "there is no store at none.db"),
        (["store", "list", "--db_connection_string", "other.db"], "expected sqlite:///PATH"),
    ],
)
def test_a_mistake_is_named(
    arguments: list[str], what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = f"sqlite:///{used_store(tmp_path / 'all.db', 'first')}"
    assert main([url if each == "STORE" else each for each in arguments]) == 2
    assert what in capsys.readouterr().err
