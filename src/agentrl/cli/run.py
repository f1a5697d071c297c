"""``agentrl run CONFIG``: engine, tools, sampler and trainer of one run on this host, supervised from here.

    start ─▶ evaluate held-out tasks ─▶ push training tasks ─▶ wait for the trainer ─▶ evaluate again ─▶ stop
                                          └ a round of evaluation whenever ``eval_steps`` fall due

A process that dies fails the run at once and is named. Ctrl-C once lets the trainer finish its step and save, twice
stops everything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from agentrl.cli.evaluation import FIRST_VERSION, EvaluationRounds
from agentrl.cli.feed import planned_steps
from agentrl.cli.feeder import Feed
from agentrl.cli.lock import held
from agentrl.cli.manifest import write_manifest
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_before_start
from agentrl.cli.presence import Heart, conducting
from agentrl.cli.report import report
from agentrl.cli.start_screen import print_start
from agentrl.cli.supervise import Supervisor
from agentrl.cli.view import MetricsTail, RunView, View
from agentrl.config import EngineOptions, RunConfig
from agentrl.config.budget import BUDGET_REACHED
from agentrl.errors import ConfigError, Interrupted, ProcessDied
from agentrl.rollout.budget import give_back_set_aside
from agentrl.rollout.budget import way_on as budget_way_on
from agentrl.store import Store, open_store
from agentrl.telemetry import JsonlSink, Telemetry
from agentrl.types import ServiceStatus, Split, Task, Worker

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.2
SAVE_GRACE_SECONDS = 60.0
STOP_GRACE_SECONDS = 15.0
INTERRUPTED = 130
AWAITED = {
    "evaluating": "samplers to play the held-out tasks",
    "training": "the trainer to train its last step",
}
"""Phase of a run -> what the process that conducts it waits for."""
TRAINING_ENDED = "training_ended"
"""State of a run whose trainer was started elsewhere: set once it has trained its last step."""

T = TypeVar("T")


def main(argv: Sequence[str]) -> int:
    config = RunConfig.parse(with_config_flag(argv), command="run CONFIG", description=__doc__ or "")
    console = Console()
    run(with_model_folder(config, say=console.print), console)
    return 0


def with_config_flag(argv: Sequence[str]) -> list[str]:
    """``agentrl run FILE --flags`` is ``agentrl run --config FILE --flags``."""
    if argv and not argv[0].startswith("-"):
        return ["--config", *argv]
    return list(argv)


def run(config: RunConfig, console: Console) -> None:
    with prepared(config) as (train, held_out):
        print_start(console, config, train, held_out)
        asyncio.run(play(config, console, train, held_out, with_trainer=True))


@contextmanager
def prepared(config: RunConfig) -> Iterator[tuple[list[Task], list[Task]]]:
    """Check everything that can be checked, take the run's folder, and write into it what the run is made of."""
    train, held_out = check_before_start(config)
    with held(config.folder, "run"):
        refuse_used_folder(config)
        config.save(config.folder / "config.yaml")
        write_manifest(config, config.folder / "manifest.json")
        yield train, held_out


def free_name(output: Path, wanted: str) -> str:
    """``wanted``, or with the first free number, for what is repeated without a thought."""
    number = 1
    while (output / (name := wanted if number == 1 else f"{wanted}-{number}")).exists():
        number += 1
    return name


def refuse_used_folder(config: RunConfig) -> None:
    if (config.folder / "run.db").exists() and not config.run.resume_from_checkpoint:
        raise ConfigError(
            f"{config.folder} holds a run already: give another --run_name, or go on with it by "
            "--resume_from_checkpoint auto",
            setting="--run_name",
        )
    if config.run.resume_from_checkpoint == "auto" and not (config.folder / "run.db").exists():
        logger.warning("there is nothing to resume in %s: the run starts from the beginning", config.folder)


async def play(
    config: RunConfig, console: Console, train: Sequence[Task], held_out: Sequence[Task], *, with_trainer: bool
) -> None:
    """The whole run; every exit stops and reaps the children. Without trainer, one that runs elsewhere is served."""
    supervisor = Supervisor(config.folder / "logs", env={})
    store = open_store(config.store_url, run=config.run.run_name)
    telemetry = Telemetry([JsonlSink(config.folder / "metrics.jsonl")])
    await store.open()
    await forget_earlier_start(store)
    rounds = EvaluationRounds(store, config, held_out, telemetry)
    tail = MetricsTail(config.folder / "metrics.jsonl", from_end=True)
    view = RunView(console, tail, max_steps=planned_steps(config, len(train)), logging_steps=config.run.logging_steps)
    try:
        async with conducting(store) as heart:
            with view, interrupts(supervisor) as interrupted:
                watch = Watch(
                    store,
                    supervisor,
                    view,
                    interrupted,
                    heart,
                    way_on=way_on(config),
                    heartbeat_timeout=config.engine.heartbeat_timeout,
                )
                try:
                    start_children(config, supervisor, view, with_trainer=with_trainer)
                    before = await watch.during("evaluating", rounds.play(FIRST_VERSION))
                    feed = Feed(store, config, train)
                    await feed.tick()
                    trained = trainer_end(supervisor) if with_trainer else training_ended(store)
                    await watch.during("training", feed.beside(rounds.until(trained)))
                    last = await store.latest_version() or FIRST_VERSION
                    after = await watch.during("evaluating", rounds.play(last))
                    await store.end_stream(Split.EVAL)
                except ProcessDied as died:
                    raise ProcessDied(f"{died}\n{watch.way_on}") from died
                finally:
                    view.phase = "stopping"
                    view.refresh()
                    await asyncio.to_thread(stop_children, supervisor, interrupted.is_set())
                    view.refresh()
        await report(config, console, store, before, after)
    finally:
        supervisor.kill_all()
        telemetry.close()
        await store.close()


async def forget_earlier_start(store: Store) -> None:
    """Processes of an earlier start of this run are gone; only engines that register themselves now are asked."""
    await store.expire_dead_workers(socket.gethostname())
    for worker in await store.workers():
        if not worker.alive:
            await store.leave(worker.id)
    for split in (Split.TRAIN, Split.EVAL):
        await store.reopen_stream(split)
    for service in await store.services():
        if service.status is not ServiceStatus.DOWN:
            await store.put_service(replace(service, status=ServiceStatus.DOWN))
    await store.set_state(TRAINING_ENDED, False)
    await give_back_set_aside(store)


def start_children(config: RunConfig, supervisor: Supervisor, view: RunView, *, with_trainer: bool) -> None:
    """Engine, sampler and trainer, each with its share of the cores."""
    common = ["--config", str(config.folder / "config.yaml")]
    cores = os.cpu_count() or 2
    threads = max(1, cores // 2)
    if not config.engine.engine_url:
        supervisor.start("engine", ["serve", *common], num_threads=threads)
    supervisor.start("sampler", ["sample", *common, "--train_file=", "--eval_file="], num_threads=1)
    if with_trainer:
        arguments = ["train", *common, "--enable_sampling=false"]
        supervisor.start("trainer", arguments, num_threads=threads, expected_to_end=True)
    view.say(
        f"[bold]{config.run.run_name}[/]: {', '.join(supervisor.children)} started on {cores} cores "
        f"({threads} for the engine, {threads} for the trainer); logs in {config.folder / 'logs'}"
    )


def stop_children(supervisor: Supervisor, interrupted: bool) -> None:
    """The trainer saves its step; after Ctrl-C running groups are finished for a while, else given back at once."""
    supervisor.stop("trainer", grace_seconds=SAVE_GRACE_SECONDS if interrupted else STOP_GRACE_SECONDS)
    drain = signal.SIGINT if interrupted else signal.SIGTERM
    supervisor.stop("sampler", grace_seconds=STOP_GRACE_SECONDS, ask=drain)
    supervisor.stop("engine", grace_seconds=STOP_GRACE_SECONDS)


async def trainer_end(supervisor: Supervisor) -> None:
    while not supervisor.ended("trainer"):
        await asyncio.sleep(WATCH_SECONDS)


async def training_ended(store: Store) -> None:
    while not await store.get_state(TRAINING_ENDED):
        await asyncio.sleep(WATCH_SECONDS)


@contextmanager
def interrupts(supervisor: Supervisor) -> Iterator[asyncio.Event]:
    """Set once Ctrl-C or SIGTERM arrives; a second one ends everything at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if event.is_set():
            print("stopped at once; what was in progress is lost", file=sys.stderr)
            supervisor.kill_all()
            os._exit(INTERRUPTED)
        event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
    try:
        yield event
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def way_on(config: RunConfig) -> str:
    return f"go on with --run_name {config.run.run_name} --resume_from_checkpoint auto"


@dataclass(slots=True)
class Watch:
    """Runs one phase while watching the children and keeping the view fresh."""

    store: Store
    supervisor: Supervisor
    view: View
    interrupted: asyncio.Event
    heart: Heart
    on_interrupt: str = "the trainer finishes its step and saves; Ctrl-C again stops at once"
    way_on: str = "go on with --resume_from_checkpoint auto"
    heartbeat_timeout: float = EngineOptions().heartbeat_timeout

    async def during(self, phase: str, work: Awaitable[T]) -> T:
        """The result of ``work``; ``ProcessDied`` when a child ends meanwhile, ``Interrupted`` on Ctrl-C."""
        self.view.phase = phase
        self.heart.waits_for(AWAITED[phase])
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=WATCH_SECONDS)
                workers = await self.store.workers()
                await self._check_children(workers)
                self.view.refresh(workers)
                if self.interrupted.is_set():
                    self.view.say(f"interrupted: {self.on_interrupt}")
                    raise Interrupted(f"stopped before the run was complete; {self.way_on}")
            return task.result()
        finally:
            task.cancel()

    async def _check_children(self, workers: Sequence[Worker]) -> None:
        """A sampler that ended because the budget pauses the run is no death: the trainer saves, as after Ctrl-C."""
        try:
            self.supervisor.check()
            self.supervisor.check_beats(workers, limit_seconds=self.heartbeat_timeout)
        except ProcessDied:
            reached = await self.store.get_state(BUDGET_REACHED)
            if reached is None or reached["action"] != "pause":
                raise
            self.interrupted.set()
            raise Interrupted(f"paused: {budget_way_on(reached['used_up'])}") from None
