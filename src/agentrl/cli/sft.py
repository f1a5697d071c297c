"""``agentrl sft``: supervised training on dialogues with tool calls: a JSONL file of messages, and tools.

Only replies are learned, never headers, prompts or tool results. The result is output/RUN/checkpoint-N, a model folder
as it lies.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agentrl.chat import load_renderer
from agentrl.chat.dialogue import dialogue_turns
from agentrl.cli.model_folder import resolved
from agentrl.cli.preflight import check_model_folder, require_torch
from agentrl.config import SftConfig
from agentrl.errors import ConfigError, RenderError
from agentrl.tasks.dialogues import load_dialogues
from agentrl.telemetry import JsonlSink, Telemetry
from agentrl.types import DBRecordData

if TYPE_CHECKING:
    from agentrl.trainer.loop import TrainConfig
    from agentrl.trainer.sft import Supervise


def main(argv: Sequence[str]) -> int:
    words = ["--config", *argv] if argv and not argv[0].startswith("-") else list(argv)
    config = SftConfig.parse(words, command="sft", description=__doc__ or "")
    if not config.run.run_name:
        raise ConfigError("the result lies in the folder of a run: give its name", setting="--run_name")
    if not config.sft.train_file:
        raise ConfigError('a JSONL file of {"messages": [...], "tools": [...]} is needed', setting="--train_file")
    require_torch()
    console = Console()
    config = replace(config, model=resolved(config.model, say=console.print))
    check_model_folder(config.model.model_name_or_path)
    sft(config, console)
    return 0


def sft(config: SftConfig, console: Console) -> None:
    """Train; SIGINT or SIGTERM ends it after the step in progress, which is saved."""
    from agentrl.trainer.loop import train
    from agentrl.trainer.sft import DialogueBatchSource, NoEngines, steps_per_epoch, without_over_long

    refuse_used_folder(config)
    rows, num_over_long = without_over_long(encoded(config), config.optim.max_tokens)
    dropped = f"; {num_over_long} longer than {config.optim.max_tokens} tokens dropped" if num_over_long else ""
    steps = config.sft.num_train_epochs * steps_per_epoch(len(rows), config.dialogues_per_step)
    steps = config.optim.max_steps if config.optim.max_steps > 0 else steps
    console.print(
        f"{len(rows)} dialogues, {sum(len(row.token_ids) for row in rows)} tokens, "
        f"{sum(map(num_learned, rows))} of them learned{dropped}; {steps} steps of {config.dialogues_per_step}",
        highlight=False,
    )
    config.save(config.folder / "config.yaml")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    source = DialogueBatchSource(
        rows=rows,
        optim=config.optim,
        rows_per_step=config.dialogues_per_step,
        max_tokens_per_microbatch=config.max_tokens_per_microbatch,
        total_steps=steps,
        seed=config.run.seed,
    )
    telemetry = Telemetry(
        [JsonlSink(config.folder / "metrics.jsonl"), ProgressSink(console, steps, config.run.logging_steps)]
    )
    try:
        progress = train(train_config(config, steps), source, NoEngines(), telemetry, stop)
    finally:
        telemetry.close()
    console.print(f"model folder: {config.folder / f'checkpoint-{progress.step}'}", highlight=False, soft_wrap=True)


def refuse_used_folder(config: SftConfig) -> None:
    if any(config.folder.glob("checkpoint-*")) and not config.run.resume_from_checkpoint:
        raise ConfigError(
            f"{config.folder} holds checkpoints already: give another --run_name, or go on with them by "
            "--resume_from_checkpoint auto",
            setting="--run_name",
        )


def encoded(config: SftConfig) -> list[DBRecordData]:
    """All dialogues as rows; raise ``ConfigError`` naming file and line for one the template refuses."""
    from agentrl.trainer.sft import supervised_row

    renderer = load_renderer(config.model.model_name_or_path)
    supervise = cast("Supervise", config.sft.supervise)
    rows = []
    for dialogue in load_dialogues(config.sft.train_file):
        where = f"{config.sft.train_file}, line {dialogue.line}"
        try:
            turns = dialogue_turns(renderer, dialogue.messages, dialogue.tools)
        except RenderError as error:
            raise ConfigError(str(error), setting=where) from error
        rows.append(supervised_row(where, turns, supervise=supervise))
    return rows


def num_learned(row: DBRecordData) -> int:
    return sum(cause == 1 for cause in row.mask)


def train_config(config: SftConfig, steps: int) -> TrainConfig:
    from agentrl.trainer.loop import TrainConfig
    from agentrl.trainer.sft import CROSS_ENTROPY

    return TrainConfig(
        folder=config.folder,
        total_steps=steps,
        model=config.model,
        optim=config.optim,
        algo=CROSS_ENTROPY,
        checkpoint=config.checkpoint,
        resume=config.run.resume_from_checkpoint,
        seed=config.run.seed,
        gap_limits=None,
    )


class ProgressSink:
    """A bar with the time left on a terminal; elsewhere a line every ``logging_steps`` that says the same."""

    def __init__(self, console: Console, steps: int, logging_steps: int) -> None:
        self._console = console
        self._steps = steps
        self._logging_steps = logging_steps
        self._begun = time.monotonic()
        self._done = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._bar = Progress(*columns, console=console) if console.is_terminal else None
        if self._bar is not None:
            self._task = self._bar.add_task("training", total=steps)
            self._bar.start()

    def write(self, event: Mapping[str, Any]) -> None:
        if event["kind"] != "step":
            return
        step, loss = int(event["step"]), event["loss"]
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=step, description=f"loss {loss:.4f}")
        elif step % self._logging_steps == 0 or step == self._steps:
            left = (time.monotonic() - self._begun) / self._done * (self._steps - step)
            tokens = event["tokens_per_second"]
            self._console.print(
                f"step {step}/{self._steps} loss {loss:.4f} lr {event['lr']:.2e} tok/s {tokens:,.0f} "
                f"left {left / 60:.1f} min",
                highlight=False,
            )

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
