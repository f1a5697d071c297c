"""Which stores are opened, which are refused, and what the refusal says."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from agentrl.errors import ConfigError
from agentrl.store import open as opening
from agentrl.store import open_store
from agentrl.store.schema import SCHEMA_VERSION
from agentrl.store.sqlite import SqliteStore

MOUNTS = """overlay / overlay rw 0 0
server:/home /home nfs4 rw,vers=4.2 0 0
/dev/sda1 /home/local ext4 rw 0 0
user@host:/ /mnt/with\\040space fuse.sshfs rw 0 0
tmpfs /twice tmpfs rw 0 0
//box/share /twice cifs rw 0 0
broken line
"""


def open_and_close(store: SqliteStore) -> None:
    async def both() -> None:
        await store.open()
        await store.close()

    asyncio.run(both())


def test_three_slashes_are_relative_and_four_absolute() -> None:
    assert open_store("sqlite:///output/run.db", run="r").path == Path("output/run.db")
    assert open_store("sqlite:////tmp/run.db", run="r").path == Path("/tmp/run.db")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mongodb://host/db", "arrives with the MongoDB backend"),
        ("postgres://host/db", "expected sqlite:///PATH, got 'postgres://host/db'"),
        ("run.db", "expected sqlite:///PATH"),
        ("", "expected sqlite:///PATH"),
        ("sqlite://run.db", "sqlite:////PATH"),
        ("sqlite:///", "sqlite:////PATH"),
        ("sqlite:///:memory:", "of a file"),
    ],
)
def test_other_urls_are_refused_by_the_name_of_the_option(url: str, says: str) -> None:
    with pytest.raises(ConfigError, match="--db_connection_string") as refusal:
        open_store(url, run="r")
    assert says in str(refusal.value)


def test_a_store_without_a_run_is_refused() -> None:
    with pytest.raises(ConfigError, match="--run_name"):
        open_store("sqlite:///run.db", run="")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/run.db", "nfs4"),
        ("/homeless/run.db", None),
        ("/home/local/run.db", None),
        ("/mnt/with space/run.db", "fuse.sshfs"),
        ("/twice/run.db", "cifs"),
    ],
)
def test_a_network_file_system_is_refused_with_ways_out(
    path: str, kind: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "mounts", lambda: MOUNTS)
    if kind is None:
        open_store(f"sqlite:///{path}", run="r")
        return
    with pytest.raises(ConfigError, match="local disk") as refusal:
        open_store(f"sqlite:///{path}", run="r")
    assert kind in str(refusal.value)
    assert "mongodb://" in str(refusal.value)


def test_missing_folders_are_made(tmp_path: Path) -> None:
    open_and_close(open_store(f"sqlite:///{tmp_path}/a/b/run.db", run="r"))
    assert (tmp_path / "a/b/run.db").exists()


def test_a_folder_a_text_file_and_a_foreign_database_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("not a database " * 100)
    foreign = sqlite3.connect(tmp_path / "foreign.db")
    foreign.execute("CREATE TABLE songs (title TEXT)")
    foreign.commit()
    foreign.close()
    for name in (".", "notes.db", "foreign.db", "notes.db/below/run.db"):
        with pytest.raises(ConfigError, match="--db_connection_string"):
            open_and_close(SqliteStore(tmp_path / name, run="r"))
    kept = sqlite3.connect(tmp_path / "foreign.db")
    assert [name for (name,) in kept.execute("SELECT name FROM sqlite_master")] == ["songs"]
    kept.close()


def test_a_store_of_another_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    open_and_close(SqliteStore(path, run="r"))
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    db.close()
    with pytest.raises(ConfigError, match=f"schema version {SCHEMA_VERSION + 1}, this program reads {SCHEMA_VERSION}"):
        open_and_close(SqliteStore(path, run="r"))


def test_eight_processes_may_create_one_store_at_once(tmp_path: Path) -> None:
    async def race() -> None:
        stores = [SqliteStore(tmp_path / "run.db", run="r") for _ in range(8)]
        await asyncio.gather(*(store.open() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(race())
