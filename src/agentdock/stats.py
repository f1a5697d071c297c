"""Counts and times of calls, as named series that any exporter can write down."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 150.0, 600.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value. ``suffix`` completes the name of the metric (``_bucket``, ``_sum``, ``_count`` of a histogram)."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A series as Prometheus knows it; ``kind`` is counter, gauge or histogram."""

    name: str
    kind: str
    help: str
    samples: tuple[Sample, ...]


@dataclass(slots=True)
class Latency:
    """How long calls took: how many fell into each bucket, and their sum."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_SECONDS) + 1))
    seconds: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BUCKET_SECONDS, seconds)] += 1
        self.seconds += seconds

    def samples(self, labels: Mapping[str, str]) -> Iterator[Sample]:
        count = 0
        for limit, number in zip((*map(str, BUCKET_SECONDS), "+Inf"), self.buckets, strict=True):
            count += number
            yield Sample(labels={**labels, "le": limit}, value=count, suffix="_bucket")
        yield Sample(labels=labels, value=self.seconds, suffix="_sum")
        yield Sample(labels=labels, value=count, suffix="_count")


@dataclass(slots=True)
class CallRecord:
    """One call under way; ``outcome`` is what it will be counted as, ``queued_seconds`` how long it waited its turn."""

    tool: str
    outcome: str = "cancelled"
    seconds: float = 0.0
    queued_seconds: float = 0.0
    error: str = ""


class CallStats:
    """Every call ends in exactly one outcome; one that ends by no other way was cancelled."""

    def __init__(self) -> None:
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._latencies: dict[str, Latency] = {}
        self._in_flight: Counter[str] = Counter()

    @contextmanager
    def call(self, tool: str, note: Callable[[CallRecord], None] = lambda record: None) -> Iterator[CallRecord]:
        """One call, from here to the end of the block; ``note`` is given the record then."""
        record = CallRecord(tool)
        self._in_flight[tool] += 1
        began = time.monotonic()
        try:
            yield record
        finally:
            record.seconds = time.monotonic() - began
            self._in_flight[tool] -= 1
            self._outcomes[tool, record.outcome] += 1
            self._latencies.setdefault(tool, Latency()).add(record.seconds)
            note(record)

    def metrics(self) -> tuple[Metric, ...]:
        calls = [
            Sample(labels={"tool": tool, "outcome": outcome}, value=number)
            for (tool, outcome), number in self._outcomes.items()
        ]
        in_flight = [Sample(labels={"tool": tool}, value=number) for tool, number in self._in_flight.items()]
        seconds = [sample for tool, latency in self._latencies.items() for sample in latency.samples({"tool": tool})]
        return (
            Metric(
                name="agentdock_calls_total", kind="counter", help="Calls by tool and outcome.", samples=tuple(calls)
            ),
            Metric(name="agentdock_calls_in_flight", kind="gauge", help="Calls under way.", samples=tuple(in_flight)),
            Metric(
                name="agentdock_call_seconds",
                kind="histogram",
                help="Seconds from the call to its end.",
                samples=tuple(seconds),
            ),
        )
