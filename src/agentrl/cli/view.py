"""What a person sees of a run: a live table on a terminal, one line a step elsewhere, and trajectories."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from agentrl.cli.tool_restarts import TOOL_RESTART, as_sentence
from agentrl.rollout.budget import BUDGET_EVENT
from agentrl.types import DispatchedSamplingTask, Message, Record, Worker

SPARKS = "▁▂▃▄▅▆▇█"
SHOWN_STEPS = 8
RECENT_RECORDS = 128


def sparkline(values: Sequence[float], *, width: int = 24) -> str:
    """Values between 0 and 1 as one character each; the newest ``width`` of them."""
    return "".join(SPARKS[min(int(max(v, 0.0) * len(SPARKS)), len(SPARKS) - 1)] for v in values[-width:])


class MetricsTail:
    """Reads what was appended to ``metrics.jsonl`` since the last look; a line still being written waits."""

    def __init__(self, path: Path, *, from_end: bool) -> None:
        self._path = path
        self._offset = path.stat().st_size if from_end and path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            chunk = file.read()
        complete = chunk[: chunk.rfind(b"\n") + 1]
        self._offset += len(complete)
        return [json.loads(line) for line in complete.splitlines()]


class View(Protocol):
    """What a run tells while it goes on."""

    phase: str

    def say(self, text: RenderableType) -> None: ...

    def refresh(self, workers: Sequence[Worker] = ()) -> None: ...


class RunView:
    """Keeps the last steps and records and shows them; ``say`` prints above the table."""

    def __init__(self, console: Console, tail: MetricsTail, *, max_steps: int, logging_steps: int = 1) -> None:
        self.console = console
        self._tail = tail
        self._max_steps = max_steps
        self._logging_steps = logging_steps
        self._steps: list[dict[str, Any]] = []
        self._scores: deque[float] = deque(maxlen=RECENT_RECORDS)
        self._turns: deque[int] = deque(maxlen=RECENT_RECORDS)
        self._live = Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else None
        self.phase = ""

    def __enter__(self) -> RunView:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(self._steps_table(), refresh=True)
            self._live.stop()

    def say(self, text: RenderableType) -> None:
        self.console.print(text)

    def refresh(self, workers: Sequence[Worker] = ()) -> None:
        for event in self._tail.read():
            if event["kind"] == "record" and event["split"] == "train" and event["score"] is not None:
                self._scores.append(event["score"])
                self._turns.append(event["turns"])
            if event["kind"] == "evaluation":
                self.say(f"held-out success at step {event['step']}: {event['success']:.3f}")
            if event["kind"] == TOOL_RESTART:
                self.say(Text(as_sentence(event), style="yellow"))
            if event["kind"] == BUDGET_EVENT:
                self.say(Text(event["text"], style="yellow"))
            if event["kind"] == "step":
                self._steps.append(
                    {**event, "success": mean(self._scores) if self._scores else None, "turns": mean(self._turns)}
                )
                if not self._live and self._shows(self._steps[-1]):
                    self.console.print(plain_line(self._steps[-1], self._max_steps), highlight=False, soft_wrap=True)
        if self._live:
            self._live.update(self._table(workers), refresh=True)

    def _shows(self, event: dict[str, Any]) -> bool:
        return event["step"] % self._logging_steps == 0 or event["step"] == self._max_steps

    def _table(self, workers: Sequence[Worker]) -> RenderableType:
        lag = " · ".join(
            f"{w.kind} {w.age_seconds:.0f} s{', waits for ' + w.waiting_for if w.waiting_for else ''}"
            for w in workers
            if w.alive and w.kind != "run"
        )
        state = f"{self.phase}, {self._max_steps} steps planned · last heartbeats: {lag or 'none yet'}"
        return Group(self._steps_table(), Text(state, style="dim"))

    def _steps_table(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for name in ("step", "reward", "success", "turns", "tokens/s", "staleness", "loss"):
            table.add_column(name, justify="right")
        for event in [event for event in self._steps if self._shows(event)][-SHOWN_STEPS:]:
            table.add_row(f"{event['step']:.0f}", *cells(event))
        rewards = [event.get("reward", 0.0) for event in self._steps]
        return Group(table, Text(f"reward {sparkline(rewards, width=60)}", style="green"))


def mean(values: Sequence[float] | deque[float] | deque[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def share(value: float | None) -> str:
    """A dash while no record was seen: after a resume the first step may be trained before one is."""
    return "-" if value is None else f"{value:.0%}"


def cells(event: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{event.get('reward', 0.0):.3f}",
        share(event["success"]),
        f"{event['turns']:.1f}",
        f"{event.get('tokens_per_second', 0.0):,.0f}",
        f"{event.get('staleness', 0.0):.2f}",
        f"{event.get('loss', 0.0):+.4f}",
    )


def plain_line(event: dict[str, Any], max_steps: int) -> str:
    """One step in 80 columns."""
    speed = short(event.get("tokens_per_second", 0.0))
    return (
        f"step {event['step']:>3.0f}/{max_steps} reward {event.get('reward', 0.0):.2f} "
        f"success {share(event['success']):>4} turns {event['turns']:.1f} tok/s {speed:>4} "
        f"stale {event.get('staleness', 0.0):.1f} loss {event.get('loss', 0.0):+.3f}"
    )


def short(value: float) -> str:
    """950, 1.2k, 12k."""
    if value < 1000:
        return f"{value:.0f}"
    return f"{value / 1000:.1f}k" if value < 9950 else f"{value / 1000:,.0f}k"


def show_trajectory(
    console: Console, title: str, record: Record, turns: Sequence[DispatchedSamplingTask], texts: Sequence[str]
) -> None:
    """Print one record turn by turn; ``texts`` are the sampled tokens of each turn as text."""
    parts: list[Text] = []
    for turn, text in zip(turns, texts, strict=True):
        parts += [message_text(message) for message in turn.new_messages]
        parts.append(Text("assistant  ", style="bold cyan") + Text(text.strip(), style="default"))
    score = "not scored" if record.score is None else f"score {record.score:g}"
    parts.append(Text(f"{record.outcome}, {score}", style="bold green" if record.score else "bold red"))
    console.print(Panel(Group(*parts), title=title, title_align="left", expand=False))


def message_text(message: Message) -> Text:
    return Text(f"{message['role']:<9}  ", style="bold") + Text(str(message.get("content", "")), style="dim")


class EvaluationView:
    """Episodes finished and their mean score: a bar on a terminal, a line a quarter elsewhere."""

    def __init__(self, console: Console, tail: MetricsTail, *, num_episodes: int) -> None:
        self.console = console
        self.phase = ""
        self._tail = tail
        self._num_episodes = num_episodes
        self._scores: dict[str, float] = {}
        self._said = 0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bar = self._progress.add_task("episodes", total=num_episodes)

    def __enter__(self) -> EvaluationView:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def say(self, text: RenderableType) -> None:
        self.console.print(text, soft_wrap=True)

    def refresh(self, workers: Sequence[Worker] = ()) -> None:
        for event in self._tail.read():
            if event["kind"] == "record":
                self._scores[event["id"].rpartition("/")[0]] = event["score"] or 0.0
            if event["kind"] == TOOL_RESTART:
                self.say(Text(as_sentence(event), style="yellow"))
        done, success = len(self._scores), mean(list(self._scores.values()))
        self._progress.update(self._bar, completed=done, description=f"episodes, success {success:.3f}")
        if not self.console.is_terminal and done * 4 // self._num_episodes > self._said:
            self._said = done * 4 // self._num_episodes
            self.console.print(f"{done}/{self._num_episodes} episodes, success {success:.3f}", highlight=False)
