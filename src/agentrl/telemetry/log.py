"""``Telemetry``: one record per step with values and timed spans, fanned out to sinks."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from agentrl.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class Sink(Protocol):
    def write(self, event: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class JsonlSink:
    """One JSON object a line, flushed at once: always on, read by status and dashboard."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event, ensure_ascii=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class StepRecord:
    """Values of one step. ``record["loss"] = 0.3``; ``with record.span("publish"): ...``."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.values: dict[str, float] = {}

    def __setitem__(self, name: str, value: float) -> None:
        self.values[name] = float(value)

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def add(self, metrics: Metrics | Mapping[str, float] | None = None, **values: float) -> None:
        self.values.update(metrics.results() if isinstance(metrics, Metrics) else metrics or {})
        self.values.update(values)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time a phase into ``seconds/NAME``; spans of one name add up."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            key = f"seconds/{name}"
            self.values[key] = self.values.get(key, 0.0) + time.perf_counter() - begun


class Telemetry:
    """Events of one process. A sink that fails is reported and left out: telemetry never stops a run."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self._sinks = list(sinks)
        self._last_words: list[Callable[[], None]] = []

    @contextmanager
    def step(self, step: int) -> Iterator[StepRecord]:
        record = StepRecord(step)
        with record.span("step"):
            yield record
        self.event("step", step=step, **record.values)

    def event(self, kind: str, **fields: Any) -> None:
        event = {"kind": kind, "time": time.time(), **fields}
        for sink in list(self._sinks):
            try:
                sink.write(event)
            except Exception:
                logger.exception("telemetry sink %s failed and is left out", type(sink).__name__)
                self._sinks.remove(sink)

    def before_close(self, last_words: Callable[[], None]) -> None:
        """Called while the sinks are still there, for what was gathered and not yet written."""
        self._last_words.append(last_words)

    def close(self) -> None:
        for last_words in self._last_words:
            last_words()
        for sink in self._sinks:
            sink.close()
