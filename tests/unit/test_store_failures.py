"""What the store says when the disk, the file system or the file fails it, and that nothing acknowledged is lost."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentrl.errors import ConfigError, StoreError
from agentrl.store import open_store, schema

FILL = """
import asyncio, json, os, resource, sys
from pathlib import Path
from agentrl.errors import StoreError
from agentrl.store import open_store

folder, how = Path(sys.argv[1]), sys.argv[2]
store = open_store(f"sqlite:///{folder}/run.db", run="r")
ballast = folder / "ballast"

def take_space():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        return
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65536))
        except OSError:
            pass
    os.truncate(ballast, max(0, ballast.stat().st_size - 300_000))

def give_space():
    if how == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        ballast.unlink()

async def fill():
    await store.open()
    await store.set_state("before", "x")
    take_space()
    keys = [f"k{number}" for number in range(60)]
    answers = await asyncio.gather(*(store.set_state(key, "x" * 20_000) for key in keys), return_exceptions=True)
    give_space()
    await store.set_state("after", "x")
    refused = [str(answer) for answer in answers if isinstance(answer, StoreError)]
    others = [repr(answer) for answer in answers if answer is not None and not isinstance(answer, StoreError)]
    written = [key for key, answer in zip(keys, answers) if answer is None]
    await store.close()
    print(json.dumps({"refused": refused, "written": written, "others": others}))

asyncio.run(fill())
"""


async def keys_of(path: Path) -> set[str]:
    store = open_store(f"sqlite:///{path}", run="r")
    await store.open()
    try:
        found = [f"k{number}" for number in range(60)]
        return {key for key in ("before", "after", *found) if await store.get_state(key) is not None}
    finally:
        await store.close()


def filled(folder: Path, how: str) -> list[str]:
    """Run out of space in a process of its own; returns what the writers that failed were told."""
    done = subprocess.run([sys.executable, "-c", FILL, str(folder), how], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["others"] == []
    assert told["refused"]
    assert asyncio.run(keys_of(folder / "run.db")) == {"before", "after", *told["written"]}
    db = sqlite3.connect(folder / "run.db")
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    return told["refused"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if os.name != "posix" or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount a small file system")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_named_and_later_writes_work(small_disk: Path) -> None:
    for message in filled(small_disk, "disk"):
        assert message.startswith(f"{small_disk}/run.db: ")
        assert "the disk is full (" in message
        assert f"MB free at {small_disk}" in message


def test_a_limit_on_the_size_of_files_is_named_and_later_writes_work(tmp_path: Path) -> None:
    for message in filled(tmp_path, "limit"):
        assert message.startswith(f"{tmp_path}/run.db: ")
        assert "a limit on the size of files (ulimit -f)" in message


def test_a_lock_that_another_process_holds_is_named_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(keys_of(tmp_path / "run.db"))
    monkeypatch.setattr(schema, "BUSY_SECONDS", 0.05)
    script = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "db.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run.db")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"held"
        with pytest.raises(ConfigError, match=r"run\.db: database is locked: another process has held the write lock"):
            asyncio.run(keys_of(tmp_path / "run.db"))
    finally:
        holder.communicate()
    assert asyncio.run(keys_of(tmp_path / "run.db")) == set()


CLOSED = """
import asyncio, os, sys
from agentrl.errors import ConfigError
from agentrl.store import open_store

os.chdir(sys.argv[1])
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    asyncio.run(open_store("sqlite:///run.db", run="r").open())
except ConfigError as error:
    print(error)
"""


def test_a_folder_that_cannot_be_written_is_named_with_the_way_out() -> None:
    """As another user where this one may write everywhere; so not below a folder that only this one may enter."""
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(keys_of(Path(place) / "run.db"))
        Path(place, "run.db").chmod(0o444)
        Path(place).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", CLOSED, place], capture_output=True, text=True, timeout=60)
        Path(place).chmod(0o700)
    assert done.stdout.startswith("--db_connection_string: cannot open run.db: attempt to write a readonly database"), (
        done.stdout + done.stderr
    )
    assert "File and folder have to be writable" in done.stdout


def test_a_text_file_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "run.db").write_text("not a database " * 100)
    with pytest.raises(ConfigError, match=r"run\.db: file is not a database: .*name a new file"):
        asyncio.run(keys_of(tmp_path / "run.db"))


def test_a_damaged_file_is_named_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "run.db"

    async def write() -> None:
        store = open_store(f"sqlite:///{path}", run="r")
        await store.open()
        for number in range(60):
            await store.set_state(f"k{number}", "x" * 20_000)
        await store.close()

    asyncio.run(write())
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(8192)
        file.write(os.urandom(size - 8192))
    with pytest.raises((ConfigError, StoreError), match=r"run\.db: .*malformed.*the file is damaged.*integrity_check"):
        asyncio.run(keys_of(path))
