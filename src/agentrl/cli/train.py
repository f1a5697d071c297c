"""``agentrl train``: the trainer of a run. Takes finished groups from the store, publishes weights to the engines.

With ``enable_sampling`` (default) it also starts this node's engine and sampler; without, it trains from what samplers
started elsewhere put into the store.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agentrl.cli.exits import tell
from agentrl.cli.feed import planned_steps, read_tasks
from agentrl.cli.lock import held
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.node import sampling_node
from agentrl.cli.preflight import check_model, require_torch
from agentrl.cli.start_screen import print_start
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.parallel import Launch
from agentrl.parallel.accelerate import Accelerate, take_accelerate
from agentrl.scoring import load_scorer_module
from agentrl.store import open_store
from agentrl.telemetry import JsonlSink, Telemetry

if TYPE_CHECKING:
    from agentrl.trainer.guards import GapLimits
    from agentrl.trainer.loop import TrainConfig
    from agentrl.trainer.source import SourceOptions, StoreBatchSource
    from agentrl.weights.base import Publisher

logger = logging.getLogger(__name__)

ALONE, WITHOUT_ACCELERATE = Launch(), Accelerate()


def main(argv: Sequence[str]) -> int:
    launch, asked = Launch.of(os.environ), take_accelerate(os.environ)
    config = with_model_folder(RunConfig.parse(argv, command="train", description=__doc__ or ""))
    if not config.run.run_name:
        raise ConfigError("a trainer works for a run: give its name", setting="--run_name")
    check_model(config)
    launch.require_size(config.optim.data_parallel_size)
    launch.require_store(config.store_url)
    require_torch()
    if not config.run.enable_sampling and launch.rank == 0:
        print_start(Console(), config, None, [])
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    for notice in asked.notices if launch.rank == 0 else ():
        logger.warning("%s", notice)
    train_run(config, stop, launch, asked)
    return 0


def train_run(
    config: RunConfig, stop: threading.Event, launch: Launch = ALONE, asked: Accelerate = WITHOUT_ACCELERATE
) -> None:
    """``stop`` (SIGINT, SIGTERM) on any rank ends training after the step in progress, which is saved.

    Rank 0 alone has the world outside: it is opened when the others can hear of a failure, and closed when they no
    longer wait.
    """
    from transformers.utils.logging import disable_progress_bar

    from agentrl.parallel.fsdp import Sharding
    from agentrl.parallel.join import join_ranks
    from agentrl.trainer.loop import train
    from agentrl.trainer.shared import SharedPublisher, SharedSource, SharedStop

    disable_progress_bar()
    world: list[World] = []
    with (
        ExitStack() as opened,
        join_ranks(
            launch,
            device=config.model.device,
            stop=stop,
            on_failure=tell,
            sharding=Sharding(reshard_after_forward=asked.reshard_after_forward),
        ) as ranks,
    ):
        ranks.on_first(lambda: world.append(opened.enter_context(open_world(config, stop))))
        mine = world[0] if world else World()
        num_tasks = ranks.on_first(lambda: count_tasks(config))
        train(
            train_config(config, num_tasks, recompute=asked.activation_checkpointing),
            SharedSource(ranks, mine.source),
            SharedPublisher(ranks, mine.publisher),
            mine.log,
            SharedStop(ranks, stop),
            ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What only rank 0 speaks with."""

    source: StoreBatchSource | None = None
    publisher: Publisher | None = None
    log: Telemetry = field(default_factory=Telemetry)


@contextmanager
def open_world(config: RunConfig, stop: threading.Event) -> Iterator[World]:
    """This node's engine and sampler, the store, the engines and the log."""
    from agentrl.store.blocking import BlockingStore
    from agentrl.trainer.announce import Announced
    from agentrl.trainer.source import StoreBatchSource
    from agentrl.weights.disk import DiskPublisher

    node = sampling_node(config, stop) if config.run.enable_sampling else nullcontext()
    with held(config.folder, "trainer"), node:
        store = open_store(config.store_url, run=config.run.run_name)
        with BlockingStore(store) as blocking:

            def engine_urls() -> list[str]:
                services = [s.url for s in blocking.call(store.services) if s.status == "UP"]
                return config.engine.engine_url or services

            timeout = config.engine.publish_timeout
            source = StoreBatchSource(blocking, source_options(config), stop=stop)
            disk = DiskPublisher(config.folder / "weights", engine_urls, timeout_seconds=timeout)
            publisher = Announced(disk, source.waits_for, timeout_seconds=timeout)
            telemetry = Telemetry([JsonlSink(config.folder / "metrics.jsonl")])
            try:
                yield World(source=source, publisher=publisher, log=telemetry)
            finally:
                publisher.close()
                source.close()
                telemetry.close()


def count_tasks(config: RunConfig) -> int:
    """Tasks of the file, which say how many steps there will be; 0 without one."""
    load_scorer_module(config.tasks.scorer_module)
    return len(read_tasks(config.tasks.train_file, "--train_file")) if config.tasks.train_file else 0


def source_options(config: RunConfig) -> SourceOptions:
    from agentrl.trainer.source import SourceOptions

    return SourceOptions(
        groups_per_step=config.groups_per_step,
        num_ranks=config.optim.data_parallel_size,
        algo=config.algo_options,
        optim=config.optim,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        drop_staleness=config.pacing.drop_staleness,
        in_order=config.pacing.sync_sampling,
        max_trained_count=config.pacing.max_trained_count,
        retrained_interval=config.pacing.retrained_interval,
        budget=config.read_budget(),
        max_refills=config.max_refills,
        wait_timeout_seconds=config.engine.wait_timeout,
        sampler_timeout_seconds=config.engine.sampler_timeout,
    )


def train_config(config: RunConfig, num_tasks: int, *, recompute: bool = False) -> TrainConfig:
    from agentrl.trainer.loop import TrainConfig

    return TrainConfig(
        folder=config.folder,
        total_steps=planned_steps(config, num_tasks) if num_tasks else max(config.optim.max_steps, 0),
        model=replace(config.model, gradient_checkpointing=recompute or config.model.gradient_checkpointing),
        optim=config.optim,
        algo=config.algo_options,
        checkpoint=config.checkpoint,
        resume=config.run.resume_from_checkpoint,
        seed=config.run.seed,
        gap_limits=gap_limits(config),
    )


def gap_limits(config: RunConfig) -> GapLimits | None:
    """In single precision on the embedded engine, engine and trainer must agree on every log-prob."""
    from agentrl.trainer.guards import GapLimits

    exact = config.engine.engine == "slots" and not config.engine.engine_url and config.model.torch_dtype == "float32"
    return GapLimits.of_depth(num_layers(config)) if exact else None


def num_layers(config: RunConfig) -> int:
    raw = json.loads((Path(config.model.model_name_or_path) / "config.json").read_text(encoding="utf-8"))
    return int(raw.get("num_hidden_layers", 2))
