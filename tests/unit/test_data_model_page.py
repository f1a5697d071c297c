"""Every query of docs/data-model.md answers on a real store, and its tables name what there is."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from store_documents import must_claim, play_next, publish, take, tasks, turn

from agentrl.store import inventory, open_store
from agentrl.types import RecordStatus, RowStatus, TaskStatus

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "data-model.md").read_text(encoding="utf-8")
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of the trainer, a group that went stale, one that is being played."""
    path = tmp_path_factory.mktemp("store") / "run.db"

    async def run() -> None:
        store = open_store(f"sqlite:///{path}", run="run")
        await store.open()
        await publish(store, 0)
        await store.add_tasks(tasks(5))
        await play_next(store)
        await play_next(store)
        await take(store, 1)
        await store.ack(1)
        for version in (1, 2, 3):
            await publish(store, version)
        await play_next(store, versions=[3])
        await take(store, 4, 3, drop_staleness=1)
        claim = await must_claim(store)
        await store.append_turn(claim, turn(f"{claim.task.id}/0/0"))
        await store.close()

    asyncio.run(run())
    return path


def answers(path: Path, query: str) -> list[sqlite3.Row]:
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    db.row_factory = sqlite3.Row
    try:
        return db.execute(query).fetchall()
    finally:
        db.close()


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(query.split())[:50])
def test_a_query_of_the_page_answers(played: Path, query: str) -> None:
    assert answers(played, query)


def test_the_answers_are_those_of_the_run(played: Path) -> None:
    by_name = {tuple(rows[0].keys()): rows for query in QUERIES if (rows := answers(played, query))}
    rows = by_name["status", "reason", "num_rows", "mean_tokens"]
    assert {(row["status"], row["reason"]): row["num_rows"] for row in rows} == {
        ("dropped", "stale"): 2,
        ("taken", ""): 2,
        ("trained", ""): 2,
    }
    trained = by_name["record", "trained_at", "turn", "status", "sampled_by", "finish_reason"]
    assert [tuple(row) for row in trained] == [
        (f"run/train/0/q0/{slot}/0", 1, 0, "completed", 0, "stop") for slot in (0, 1)
    ]
    steps = by_name["step", "num_rows", "mean_reward"]
    assert [tuple(row) for row in steps] == [(0, 4, 1.0), (3, 2, 1.0)]
    (silent,) = (row["silent_seconds"] for row in by_name["kind", "host", "pid", "silent_seconds", "waiting_for"])
    assert -2 < silent < 600


def test_the_page_names_every_table_document_and_state() -> None:
    states = [*TaskStatus, *RecordStatus, *RowStatus]
    tables = [*inventory.KINDS, *inventory.TOTALS]
    assert [name for name in (*tables, *map(str, states)) if f"`{name}`" not in PAGE] == []
    assert [kind for kind in inventory.KINDS.values() if f"| {kind} |" not in PAGE] == []
    assert 6 <= len(QUERIES) <= 10
