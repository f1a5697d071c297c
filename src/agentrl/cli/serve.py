"""``agentrl serve``: the embedded engine over HTTP: token ids for samplers, chat completions for everybody.

With ``--run_name`` it belongs to a run: it registers itself in the store and, with ``await_weights`` (default), serves
nothing until the trainer has published a first version. Otherwise it serves the model as it lies in its folder.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from agentrl.chat import load_renderer
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_model, require_torch
from agentrl.cli.presence import this_worker
from agentrl.config import RunConfig
from agentrl.engine import Engine
from agentrl.engine.base import EngineHealth
from agentrl.engine.scripted import ScriptedEngine
from agentrl.engine.server import serve
from agentrl.errors import ConfigError, EngineError
from agentrl.store import Store, open_store
from agentrl.store.base import HEARTBEAT_SECONDS
from agentrl.types import InferenceService, ServiceStatus, Worker

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    config = with_model_folder(RunConfig.parse(argv, command="serve", description=__doc__ or ""))
    check_model(config)
    asyncio.run(serve_run(config) if config.run.run_name else serve_alone(config))
    return 0


async def serve_alone(config: RunConfig) -> None:
    console = Console()
    await serve(
        build_engine(config, version=0),
        host=config.serve.host,
        port=config.serve.port,
        model_name=config.model.model_name,
        renderer=load_renderer(config.model.model_name_or_path, tool_call_parser=config.rollout.tool_call_parser),
        on_ready=lambda url: console.print(f"serving {config.model.model_name} at {url}", highlight=False),
        stop=stop_on_signals(),
    )


async def serve_run(config: RunConfig) -> None:
    engine = build_engine(config, version=None if config.serve.await_weights else 0)
    store = open_store(config.store_url, run=config.run.run_name)
    await store.open()
    stop = stop_on_signals()
    registration = Registration(store=store, engine=engine, config=config)
    beating = asyncio.create_task(registration.beat(stop))
    try:
        await serve(
            engine,
            host=config.serve.host,
            port=config.serve.port,
            model_name=config.model.model_name,
            renderer=load_renderer(config.model.model_name_or_path, tool_call_parser=config.rollout.tool_call_parser),
            on_ready=registration.ready,
            stop=stop,
        )
        if beating.done():
            beating.result()
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await registration.leave()
        await engine.close()
        await store.close()


def build_engine(config: RunConfig, *, version: int | None) -> Engine:
    if config.engine.engine == "scripted":
        return ScriptedEngine(config.engine.engine_script, version=version)
    require_torch()
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    from agentrl.engine.slots import SlotEngine

    disable_progress_bar()
    folder = config.model.model_name_or_path
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=getattr(torch, config.model.torch_dtype),
            trust_remote_code=config.model.trust_remote_code,
            local_files_only=True,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"{folder} does not load: {error}", setting="--model_name_or_path") from error
    return SlotEngine(
        model.to(pick_device(config.model.device)),
        num_slots=config.engine.engine_slots,
        max_context=config.engine.max_context,
        version=version,
    )


def pick_device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"{wanted} was asked for, but torch sees no such device", setting="--device")
    return wanted


def stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@dataclass(slots=True, kw_only=True)
class Registration:
    """The engine's row in the store, and its heartbeat as a worker of the run."""

    store: Store
    engine: Engine
    config: RunConfig
    url: str = ""
    worker: Worker = field(default_factory=lambda: this_worker("engine"))
    last_error: str = ""

    async def ready(self, url: str) -> None:
        self.url = url
        await self.store.put_service(self._service(ServiceStatus.UP, await self.engine.health()))
        logger.info("serving at %s", url)

    async def beat(self, stop: asyncio.Event) -> None:
        """Heartbeats with the version served; an engine that broke stops the server and is raised."""
        while True:
            health = await self.engine.health()
            if health.detail.startswith("failed"):
                self.last_error = health.detail
                stop.set()
                raise EngineError(health.detail)
            waiting = "the trainer to publish the first weights" if health.version is None else ""
            await self.store.heartbeat(replace(self.worker, waiting_for=waiting))
            if self.url:
                await self.store.put_service(self._service(ServiceStatus.UP, health))
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def leave(self) -> None:
        """An engine that broke keeps its worker: it did not leave."""
        if self.url:
            await self.store.put_service(self._service(ServiceStatus.DOWN, await self.engine.health()))
        if not self.last_error:
            await self.store.leave(self.worker.id)

    def _service(self, status: ServiceStatus, health: EngineHealth) -> InferenceService:
        return InferenceService(
            url=self.url,
            kind=self.config.engine.engine,
            model=self.config.model.model_name,
            status=status,
            policy_version=health.version,
            running=health.running,
            last_error=self.last_error,
        )
