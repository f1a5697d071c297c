"""A sampler that is started alone: which run and which engines it joins, and what it says when they are not there."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from cli_help import configured, with_store
from rollout_help import Model

from agentrl.cli.joining import wait_for_engine, wait_for_run
from agentrl.cli.main import main
from agentrl.config import RunConfig
from agentrl.engine.pool import EnginePool
from agentrl.engine.server import serve
from agentrl.errors import EngineOutage, WaitTimeout
from agentrl.store import Store, open_store, stored_runs
from agentrl.types import Split, Task


def begun(folder: Path, run: str = "real") -> RunConfig:
    config = configured(folder, f"--run_name={run}", f"--db_connection_string=sqlite:///{folder / 'shared.db'}")

    async def push(store: Store) -> None:
        await store.add_tasks([Task(task_id="t", query="?", answer="3", scorer="exact", split=Split.TRAIN)])

    with_store(config, push)
    return config


def test_a_store_that_is_not_there_is_named_and_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--run_name=typo", f"--output_dir={tmp_path}", "--wait_timeout=0.3"]
    assert main(["sample", *flags]) == 1
    said = capsys.readouterr().err
    assert f"there is no store sqlite:///{tmp_path / 'typo' / 'run.db'} (--db_connection_string) of run 'typo'" in said
    assert f"below {tmp_path} (--output_dir)" in said
    assert "Start its trainer, or give this sampler the tasks (--train_file)" in said
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_run_name_is_told_with_the_runs_there_are_and_leaves_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = begun(tmp_path)
    flags = ["--run_name=reel", f"--output_dir={tmp_path}", f"--db_connection_string={config.store_url}"]
    assert main(["sample", *flags, "--wait_timeout=0.3"]) == 1
    said = capsys.readouterr().err
    assert f"there is no run 'reel' (--run_name) in {config.store_url}: it holds real" in said
    assert stored_runs(config.store_url) == ["real"]


def test_a_run_that_begins_later_is_waited_for(tmp_path: Path) -> None:
    config = configured(tmp_path)

    async def scenario() -> None:
        waiting = asyncio.create_task(wait_for_run(config))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        store = open_store(config.store_url, run="r")
        await store.open()
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await store.add_tasks([Task(task_id="t", query="?")])
        await asyncio.wait_for(waiting, 10)
        await store.close()

    asyncio.run(scenario())


def test_a_sampler_that_brings_tasks_waits_for_nobody(tmp_path: Path) -> None:
    asyncio.run(wait_for_run(configured(tmp_path, "--train_file=tasks.jsonl", "--wait_timeout=0.1")))
    with pytest.raises(WaitTimeout):
        asyncio.run(wait_for_run(configured(tmp_path, "--wait_timeout=0.1")))


def test_an_engine_that_never_answers_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"

    async def scenario() -> None:
        pool = EnginePool([url])
        try:
            with pytest.raises(EngineOutage) as told:
                await wait_for_engine(pool, [url], timeout_seconds=0.3)
        finally:
            await pool.close()
        assert f"no engine answers at {url} (--engine_url; waited 0.3 s, --wait_timeout): " in str(told.value)
        assert "refused" in str(told.value).lower() or "connect" in str(told.value).lower()

    asyncio.run(scenario())


def test_an_engine_that_answers_is_enough_though_another_does_not_and_it_may_come_later() -> None:
    port = free_port()
    urls = [f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{port}"]

    async def scenario() -> None:
        pool, stop = EnginePool(urls), asyncio.Event()
        waiting = asyncio.create_task(wait_for_engine(pool, urls, timeout_seconds=20))
        await asyncio.sleep(0.3)
        assert not waiting.done()

        async def ready(url: str) -> None:
            pass

        serving = asyncio.create_task(
            serve(Model(["x"]), host="127.0.0.1", port=port, model_name="m", on_ready=ready, stop=stop)
        )
        await asyncio.wait_for(waiting, 20)
        stop.set()
        await serving
        await pool.close()

    asyncio.run(scenario())


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
