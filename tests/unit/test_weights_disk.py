"""Publishing through a folder: who must confirm, what is deleted when, where memory is used."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from engine_cases import count_up, served_on_thread

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import WeightsError
from agentrl.weights import disk
from agentrl.weights.disk import DiskPublisher, ipc_folder

TENSORS = {"w": torch.ones(4, 4)}


class Reading(ScriptedEngine):
    """Notes which folders are there while it is given a new one."""

    seen: list[tuple[int, list[str], bool]]

    async def update_weights(self, version, source):
        path = Path(source.path)
        there = sorted(each.name for each in path.parent.iterdir())
        self.seen = [*getattr(self, "seen", []), (version, there, (path / "model.safetensors").is_file())]
        return await super().update_weights(version, source)


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_weights_are_complete_when_asked_for_and_old_ones_go_after_all_confirmed(tmp_path: Path) -> None:
    with served_on_thread(lambda: Reading(count_up)) as (url, engine):
        publisher = DiskPublisher(tmp_path, lambda: [url], timeout_seconds=5, keep=2)
        for version in range(4):
            publisher.publish(TENSORS, version=version, canary=None)
        assert isinstance(engine, Reading)
        assert engine.seen == [
            (0, ["v0"], True),
            (1, ["v0", "v1"], True),
            (2, ["v0", "v1", "v2"], True),
            (3, ["v1", "v2", "v3"], True),
        ]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["v2", "v3"]
        publisher.close()
        assert list(tmp_path.iterdir()) == []


def test_an_unconfirmed_version_deletes_nothing(tmp_path: Path) -> None:
    with served_on_thread(lambda: ScriptedEngine(count_up)) as (url, engine):
        assert isinstance(engine, ScriptedEngine)
        publisher = DiskPublisher(tmp_path, lambda: [url], timeout_seconds=5, keep=1)
        publisher.publish(TENSORS, version=1, canary=None)
        engine.faults.stall_version = True
        with pytest.raises(WeightsError, match=rf"engine {url} acknowledged the update and still serves version 1"):
            publisher.publish(TENSORS, version=2, canary=None)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["v1", "v2"]


def test_each_engine_that_does_not_confirm_is_named_with_its_reason(tmp_path: Path) -> None:
    with (
        served_on_thread(lambda: ScriptedEngine(count_up)) as (fine, _),
        answering(409, json.dumps({"error": {"message": "the canary differs by 0.5"}}).encode()) as refusing,
        answering(200, b"<html>") as odd,
    ):
        publisher = DiskPublisher(tmp_path, lambda: [fine, refusing, odd], timeout_seconds=5)
        with pytest.raises(WeightsError) as caught:
            publisher.publish(TENSORS, version=3, canary=None)
    message = str(caught.value)
    assert fine not in message
    assert f"engine {refusing} answered 409: the canary differs by 0.5" in message
    assert f"engine {odd} answered 200 with '<html>'" in message


def test_an_engine_that_is_not_there_is_named(tmp_path: Path) -> None:
    publisher = DiskPublisher(tmp_path, lambda: ["http://127.0.0.1:9"], timeout_seconds=5)
    with pytest.raises(WeightsError, match=r"engine http://127\.0\.0\.1:9 cannot be reached"):
        publisher.publish(TENSORS, version=3, canary=None)


def test_an_engine_that_never_answers_costs_the_timeout(tmp_path: Path) -> None:
    class Stuck(ScriptedEngine):
        async def update_weights(self, version, source):
            import asyncio

            await asyncio.sleep(1.5)
            return await super().update_weights(version, source)

    with served_on_thread(lambda: Stuck(count_up)) as (url, _):
        publisher = DiskPublisher(tmp_path, lambda: [url], timeout_seconds=0.4)
        begun = time.monotonic()
        with pytest.raises(WeightsError, match=rf"engine {url} did not answer in time"):
            publisher.publish(TENSORS, version=3, canary=None)
        assert time.monotonic() - begun < 1.2


def test_it_waits_for_a_first_engine_and_no_longer_than_the_timeout(tmp_path: Path) -> None:
    with served_on_thread(lambda: ScriptedEngine(count_up)) as (url, _):
        begun = time.monotonic()
        late = DiskPublisher(tmp_path, lambda: [url] if time.monotonic() - begun > 0.3 else [], timeout_seconds=5)
        assert late.publish(TENSORS, version=0, canary=None).confirmations[0].url == url
    with pytest.raises(WeightsError, match=r"no engine was there within 0\.2 s.*--engine_url"):
        DiskPublisher(tmp_path, list, timeout_seconds=0.2).publish(TENSORS, version=1, canary=None)


def test_what_a_killed_trainer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("v3", ".v4.tmp-17", ".v4.tmp-17-old", "vocab", "checkpoint-1"):
        (tmp_path / name).mkdir()
    DiskPublisher(tmp_path, list, timeout_seconds=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "vocab"]


def test_a_full_folder_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = disk.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(WeightsError, match=rf"{tmp_path} has 0 MiB free"):
        DiskPublisher(tmp_path, list, timeout_seconds=1).publish(TENSORS, version=1, canary=None)
    assert list(tmp_path.iterdir()) == []


def test_the_folder_in_memory_is_private_and_belongs_to_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "SHARED_MEMORY", tmp_path)
    first, second = ipc_folder("/a/runs/x y"), ipc_folder("/b/runs/x y")
    assert first == ipc_folder("/a/runs/x y") != second
    assert first.parent == tmp_path
    assert first.stat().st_mode & 0o777 == 0o700


def test_without_shared_memory_a_warning_says_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(disk, "SHARED_MEMORY", tmp_path / "nothing")
    monkeypatch.setattr(disk.tempfile, "gettempdir", lambda: str(tmp_path))
    with caplog.at_level(logging.WARNING):
        assert ipc_folder("r").parent == tmp_path
    assert "each publish is written to disk" in caplog.text
    monkeypatch.setattr(disk, "SHARED_MEMORY", tmp_path)
    caplog.clear()
    ipc_folder("r", needed_bytes=1 << 60)
    assert "MiB are needed" in caplog.text


def test_a_folder_of_that_name_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SHARED_MEMORY", tmp_path)
    folder = ipc_folder("r")
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(WeightsError, match="belongs to another"):
        ipc_folder("r")
