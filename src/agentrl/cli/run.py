"""``agentrl run CONFIG``: engine, tools, sampler and trainer of one run on this host, supervised from here.

    start ─▶ evaluate held-out tasks ─▶ push training tasks ─▶ wait for the trainer ─▶ evaluate again ─▶ stop

A process that dies fails the run at once and is named. Ctrl-C once lets the trainer finish its step and save, twice
stops everything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from rich.console import Console

from agentrl.cli.feed import Evaluation, evaluate, evaluation_tasks, planned_steps, training_tasks
from agentrl.cli.manifest import write_manifest
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_before_start
from agentrl.cli.supervise import Supervisor
from agentrl.cli.view import MetricsTail, RunView, show_trajectory
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, Interrupted
from agentrl.store import Store, open_store
from agentrl.types import Record, RowStatus, ServiceStatus, Split, Task, TaskStatus

WATCH_SECONDS = 0.2
SAVE_GRACE_SECONDS = 60.0
STOP_GRACE_SECONDS = 15.0
INTERRUPTED = 130

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    before: Evaluation | None
    after: Evaluation | None


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


def run(config: RunConfig, console: Console) -> Result:
    train, held_out = check_before_start(config)
    refuse_used_folder(config)
    config.save(config.folder / "config.yaml")
    write_manifest(config, config.folder / "manifest.json")
    return asyncio.run(play(config, console, train, held_out))


def refuse_used_folder(config: RunConfig) -> None:
    if (config.folder / "run.db").exists() and not config.run.resume_from_checkpoint:
        raise ConfigError(
            f"{config.folder} holds a run already: give another --run_name, or go on with it by "
            "--resume_from_checkpoint auto",
            setting="--run_name",
        )


async def play(config: RunConfig, console: Console, train: Sequence[Task], held_out: Sequence[Task]) -> Result:
    """The whole run; every exit stops and reaps the children."""
    supervisor = Supervisor(config.folder / "logs", env={})
    store = open_store(config.store_url, run=config.run.run_name)
    await store.open()
    await forget_services(store)
    tail = MetricsTail(config.folder / "metrics.jsonl", from_end=True)
    steps = planned_steps(config, len(train))
    try:
        view = RunView(console, tail, max_steps=steps, logging_steps=config.run.logging_steps)
        with view, interrupts(supervisor) as interrupted:
            watch = Watch(store, supervisor, view, interrupted)
            try:
                start_children(config, supervisor, view)
                before = await watch.during("evaluating", round_of(store, config, held_out, step=0))
                if before is not None:
                    view.say(f"held-out success before training: {before.success:.3f}")
                await push(store, config, train)
                await watch.during("training", trainer_end(supervisor))
                last = await store.latest_version()
                after = await watch.during(
                    "evaluating", round_of(store, config, held_out, step=last.step if last else 0)
                )
                await store.end_stream(Split.EVAL)
            finally:
                view.phase = "stopping"
                await asyncio.to_thread(stop_children, supervisor, interrupted.is_set())
                view.refresh()
        await report(config, console, store, before, after)
        return Result(before=before, after=after)
    finally:
        supervisor.kill_all()
        await store.close()


async def forget_services(store: Store) -> None:
    """Engines of an earlier start of this run are gone; only those that register themselves now are asked."""
    for service in await store.services():
        await store.put_service(replace(service, status=ServiceStatus.DOWN))


def start_children(config: RunConfig, supervisor: Supervisor, view: RunView) -> None:
    """Engine, sampler and trainer, each with its share of the cores."""
    common = ["--config", str(config.folder / "config.yaml")]
    cores = os.cpu_count() or 2
    threads = max(1, cores // 2)
    if not config.engine.engine_url:
        supervisor.start("engine", ["serve", *common], num_threads=threads)
    supervisor.start("sampler", ["sample", *common, "--train_file=", "--eval_file="], num_threads=1)
    supervisor.start("trainer", ["train", *common], num_threads=threads, expected_to_end=True)
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


async def round_of(store: Store, config: RunConfig, held_out: Sequence[Task], *, step: int) -> Evaluation | None:
    if not held_out:
        return None
    return await evaluate(store, evaluation_tasks(config, held_out, step), step)


async def push(store: Store, config: RunConfig, train: Sequence[Task]) -> None:
    """After the first evaluation, so that it ends before the first training group is admitted."""
    await store.add_tasks(training_tasks(config, train))
    await store.end_stream(Split.TRAIN)


async def trainer_end(supervisor: Supervisor) -> None:
    while not supervisor.ended("trainer"):
        await asyncio.sleep(WATCH_SECONDS)


@contextmanager
def interrupts(supervisor: Supervisor) -> Iterator[asyncio.Event]:
    """Set once Ctrl-C or SIGTERM arrives; a second one ends everything at once."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        if event.is_set():
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


@dataclass(slots=True)
class Watch:
    """Runs one phase while watching the children and keeping the view fresh."""

    store: Store
    supervisor: Supervisor
    view: RunView
    interrupted: asyncio.Event

    async def during(self, phase: str, work: Awaitable[T]) -> T:
        """The result of ``work``; ``ProcessDied`` when a child ends meanwhile, ``Interrupted`` on Ctrl-C."""
        self.view.phase = phase
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=WATCH_SECONDS)
                self.supervisor.check()
                self.view.refresh(await self.store.workers())
                if self.interrupted.is_set():
                    self.view.say("interrupted: the trainer finishes its step and saves; Ctrl-C again stops at once")
                    raise Interrupted("stopped before the run was complete; go on with --resume_from_checkpoint auto")
            return task.result()
        finally:
            task.cancel()


async def report(
    config: RunConfig, console: Console, store: Store, before: Evaluation | None, after: Evaluation | None
) -> None:
    """One trajectory from before and one from after, then the two lines that matter."""
    if before is not None and after is not None:
        decode = decoder(config)
        for title, evaluation, record in zip(
            ("before training", "after training"), (before, after), telling_pair(before, after), strict=True
        ):
            turns = await store.find("turn", record=record.id)
            show_trajectory(console, title, record, turns, [decode(turn.token_ids) for turn in turns])
            if evaluation.num_unscored:
                console.print(f"{title}: {evaluation.num_unscored} held-out records could not be scored")
    console.print(await tally(store), highlight=False)
    console.print(f"run folder: {config.folder}", highlight=False)
    if before is not None and after is not None:
        console.print(f"held-out success: {before.success:.3f} -> {after.success:.3f}", highlight=False)


async def tally(store: Store) -> str:
    """Steps trained, and what became of every training group and row: nothing is skipped in silence."""
    last = await store.latest_version()
    tasks = await store.find("task", split=Split.TRAIN)
    groups = Counter(f"{task.status} {task.reason}".strip() for task in tasks if task.status != TaskStatus.CREATED)
    rows = {status: await store.count("row", status=status) for status in RowStatus}
    return (
        f"trained {last.step if last else 0} steps; groups: {counted(groups)}; "
        f"rows: {counted({str(status): count for status, count in rows.items() if count})}"
    )


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def telling_pair(before: Evaluation, after: Evaluation) -> tuple[Record, Record]:
    """Records of one task: the first that training made better, or else the first."""
    pairs = list(zip(before.records, after.records, strict=True))
    return next((pair for pair in pairs if (pair[0].score or 0.0) < (pair[1].score or 0.0)), pairs[0])


def decoder(config: RunConfig):
    """Token ids of a turn as text."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(config.model.model_name_or_path)
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True)
