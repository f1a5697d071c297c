"""Each option of engine and server, from its flag to what is served."""

import asyncio
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_help import configured, opened

from agentrl.cli.serve import build_engine, pick_device, serve_run
from agentrl.config import RunConfig
from agentrl.engine.client import EngineClient
from agentrl.engine.slots import SlotEngine
from agentrl.errors import ConfigError, ContextTooLong, WaitTimeout
from agentrl.rollout.sampler import wait_for_service
from agentrl.types import InferenceService, Sampling, ServiceStatus

SCRIPT = ("--engine=scripted", "--engine_script=script:reply")


def asked(config: RunConfig, question: Any) -> Any:
    """The answer of an engine that is closed afterwards."""

    async def run() -> Any:
        engine = build_engine(config, version=0)
        try:
            return await asyncio.wait_for(question(engine), 30)
        finally:
            await engine.close()

    return asyncio.run(run())


async def generated(engine: Any, *, prompt: int = 8, new: int = 4) -> Any:
    sampling = Sampling(max_new_tokens=new, seed=1)
    return await engine.generate(list(range(5, 5 + prompt)), sampling=sampling, session="s", deadline_seconds=20)


def test_engine_and_engine_script_choose_who_answers(tmp_path: Path) -> None:
    async def kind(engine: Any) -> str:
        return type(engine).__name__

    assert asked(configured(tmp_path), kind) == "SlotEngine"
    assert asked(configured(tmp_path, *SCRIPT), kind) == "ScriptedEngine"
    with pytest.raises(ConfigError, match="no script 'script:nothing'"):
        asked(configured(tmp_path, "--engine=scripted", "--engine_script=script:nothing"), kind)


def test_max_context_refuses_a_longer_prompt(tmp_path: Path) -> None:
    assert len(asked(configured(tmp_path, "--max_context=12"), generated).token_ids) <= 4
    with pytest.raises(ContextTooLong):
        asked(configured(tmp_path, "--max_context=8"), generated)


@pytest.mark.parametrize("slots", [1, 3])
def test_engine_slots_are_decoded_together(tmp_path: Path, slots: int) -> None:
    async def most_at_once(engine: SlotEngine) -> int:
        requests = [asyncio.create_task(generated(engine, new=40)) for _ in range(4)]
        most = 0
        while not all(request.done() for request in requests):
            most = max(most, (await engine.health()).running)
            await asyncio.sleep(0)
        return most

    assert asked(configured(tmp_path, f"--engine_slots={slots}"), most_at_once) == slots


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_torch_dtype_is_that_of_the_served_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("agentrl.engine.slots.SlotEngine", lambda model, **options: model)
    served: Any = build_engine(configured(tmp_path, f"--torch_dtype={name}"), version=0)
    assert {parameter.dtype for parameter in served.parameters()} == {getattr(torch, name)}


def test_device_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [pick_device(name) for name in ("auto", "cpu", "cuda:1")] == ["cuda", "cpu", "cuda:1"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == "cpu"
    with pytest.raises(ConfigError, match="--device: cuda:1 was asked for"):
        build_engine(configured(tmp_path, "--device=cuda:1"), version=0)


def test_host_port_and_model_name_are_what_the_run_is_told(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = configured(tmp_path, *SCRIPT, f"--port={port}", "--host=127.0.0.1", "--model_name=pupil")

    async def scenario() -> tuple[InferenceService, InferenceService]:
        async with opened(config) as store:
            serving = asyncio.create_task(serve_run(config))
            urls = await wait_for_service(store, timeout_seconds=20)
            assert urls == [f"http://127.0.0.1:{port}"]
            (up,) = await store.services()
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(serving, 20)
            (down,) = await store.services()
            return up, down

    up, down = asyncio.run(scenario())
    assert (up.model, up.kind, up.status) == ("pupil", "scripted", ServiceStatus.UP)
    assert down.status is ServiceStatus.DOWN


@pytest.mark.parametrize("awaits", [True, False])
def test_await_weights_false_serves_the_model_of_a_run_as_it_lies(tmp_path: Path, awaits: bool) -> None:
    config = configured(tmp_path, f"--await_weights={awaits}")

    async def scenario() -> int | None:
        async with opened(config) as store:
            serving = asyncio.create_task(serve_run(config))
            (url,) = await wait_for_service(store, timeout_seconds=20)
            client = EngineClient(url)
            try:
                return (await client.health()).version
            finally:
                await client.close()
                signal.raise_signal(signal.SIGTERM)
                await asyncio.wait_for(serving, 20)

    assert asyncio.run(scenario()) == (None if awaits else 0)


def test_a_sampler_waits_for_an_engine_no_longer_than_wait_timeout(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with opened(configured(tmp_path)) as store:
            await wait_for_service(store, timeout_seconds=0.1)

    with pytest.raises(WaitTimeout, match="no engine registered itself in the store"):
        asyncio.run(scenario())
