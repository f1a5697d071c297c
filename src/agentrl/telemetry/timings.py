"""Where time goes: a stopwatch for what is timed, and the reduction of many ``Timings`` to numbers a person reads."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import fields

from agentrl.telemetry.log import Telemetry
from agentrl.types import Timings

KINDS = tuple(field.name for field in fields(Timings))
WINDOW_SECONDS = 10.0
MOST_KEPT = 4096
"""Timings of a window beyond these are counted, not kept: a p99 needs no more."""


class Stopwatch:
    """``lap`` gives the seconds since the last one, to the microsecond."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def lap(self) -> float:
        last, self._last = self._last, time.perf_counter()
        return round(self._last - last, 6)


def reduced(timings: Sequence[Timings]) -> dict[str, dict[str, float]]:
    """``mean``, ``p50`` and ``p99`` of every kind that took any time."""
    columns = {kind: sorted(getattr(each, kind) for each in timings) for kind in KINDS}
    return {
        kind: {
            "mean": round(sum(values) / len(values), 6),
            "p50": round(quantile(values, 0.5), 6),
            "p99": round(quantile(values, 0.99), 6),
        }
        for kind, values in columns.items()
        if values and values[-1] > 0
    }


def quantile(ordered: Sequence[float], part: float) -> float:
    """The value below which ``part`` of them lie, between neighbours in proportion."""
    place = part * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


class TimingsWindow:
    """Gathers timings by scope (``turns``, ``records``, ``groups``) and writes one ``timings`` event a window."""

    def __init__(self, telemetry: Telemetry, *, window_seconds: float = WINDOW_SECONDS) -> None:
        self._telemetry = telemetry
        self._window_seconds = window_seconds
        self._begun = time.monotonic()
        self._counts: dict[str, int] = {}
        self._kept: dict[str, list[Timings]] = {}
        telemetry.before_close(self.flush)

    def add(self, scope: str, timings: Timings) -> None:
        self._counts[scope] = self._counts.get(scope, 0) + 1
        kept = self._kept.setdefault(scope, [])
        if len(kept) < MOST_KEPT:
            kept.append(timings)
        if time.monotonic() - self._begun >= self._window_seconds:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered, if anything was."""
        if self._counts:
            scopes: Mapping[str, object] = {
                scope: {"count": count, **reduced(self._kept[scope])} for scope, count in self._counts.items()
            }
            self._telemetry.event("timings", seconds=round(time.monotonic() - self._begun, 3), **scopes)
        self._begun, self._counts, self._kept = time.monotonic(), {}, {}
