"""``agentrl train``: the trainer of a run. Takes finished groups from the store, publishes weights to the engines.

With ``enable_sampling`` (default) it also starts this node's engine and sampler; without, it trains from what samplers
started elsewhere put into the store.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.console import Console

from agentrl.cli.feed import planned_steps, read_tasks
from agentrl.cli.node import sampling_node
from agentrl.cli.preflight import check_model, require_torch
from agentrl.cli.start_screen import print_start
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.scoring import load_scorer_module
from agentrl.store import open_store
from agentrl.telemetry import JsonlSink, Telemetry

if TYPE_CHECKING:
    from agentrl.trainer.guards import GapLimits
    from agentrl.trainer.loop import TrainConfig
    from agentrl.trainer.source import SourceOptions


def main(argv: Sequence[str]) -> int:
    config = RunConfig.parse(argv, command="train", description=__doc__ or "")
    if not config.run.run_name:
        raise ConfigError("a trainer works for a run: give its name", setting="--run_name")
    check_model(config)
    require_torch()
    if not config.run.enable_sampling:
        print_start(Console(), config, None, [])
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with sampling_node(config, stop) if config.run.enable_sampling else nullcontext():
        train_run(config, stop)
    return 0


def train_run(config: RunConfig, stop: threading.Event) -> None:
    """``stop`` (SIGINT, SIGTERM) ends training after the step in progress, which is saved."""
    from transformers.utils.logging import disable_progress_bar

    from agentrl.store.blocking import BlockingStore
    from agentrl.trainer.loop import train
    from agentrl.trainer.source import StoreBatchSource
    from agentrl.weights.disk import DiskPublisher

    disable_progress_bar()
    num_tasks = count_tasks(config)
    telemetry = Telemetry([JsonlSink(config.folder / "metrics.jsonl")])
    store = open_store(config.store_url, run=config.run.run_name)
    with BlockingStore(store) as blocking:

        def engine_urls() -> list[str]:
            services = [s.url for s in blocking.call(store.services) if s.status == "UP"]
            return config.engine.engine_url or services

        publisher = DiskPublisher(config.folder / "weights", engine_urls, timeout_seconds=config.engine.publish_timeout)
        source = StoreBatchSource(
            blocking,
            source_options(config),
            stop=stop,
        )
        try:
            train(train_config(config, num_tasks), source, publisher, telemetry, stop)
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
        algo=config.algo_options,
        optim=config.optim,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        drop_staleness=config.pacing.drop_staleness,
        in_order=config.pacing.sync_sampling,
        wait_timeout_seconds=config.engine.wait_timeout,
    )


def train_config(config: RunConfig, num_tasks: int) -> TrainConfig:
    from agentrl.trainer.loop import TrainConfig

    return TrainConfig(
        folder=config.folder,
        total_steps=planned_steps(config, num_tasks) if num_tasks else max(config.optim.max_steps, 0),
        model=config.model,
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
    return GapLimits() if exact else None
