"""Metrics that know how to reduce: values from micro-batches, ranks and episodes add up to the right number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Sum:
    value: float

    def merge(self, other: Sum) -> Sum:
        return Sum(self.value + other.value)

    @property
    def result(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Mean:
    """Weighted mean: ``total / weight``; NaN-free, 0 when nothing was weighed."""

    total: float
    weight: float = 1.0

    def merge(self, other: Mean) -> Mean:
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def result(self) -> float:
        return self.total / self.weight if self.weight else 0.0


@dataclass(frozen=True, slots=True)
class Max:
    value: float

    def merge(self, other: Max) -> Max:
        return Max(max(self.value, other.value))

    @property
    def result(self) -> float:
        return self.value


@dataclass(frozen=True, slots=True)
class Last:
    value: float

    def merge(self, other: Last) -> Last:
        return other

    @property
    def result(self) -> float:
        return self.value


Metric = Sum | Mean | Max | Last


class Metrics:
    """A named bag of metrics; adding a name twice merges, mixing kinds under one name is an error."""

    def __init__(self) -> None:
        self._values: dict[str, Metric] = {}

    def add(self, values: Mapping[str, Metric] | None = None, **more: Metric) -> Self:
        for name, metric in {**(values or {}), **more}.items():
            known = self._values.get(name)
            if known is None:
                self._values[name] = metric
            elif type(known) is not type(metric):
                raise TypeError(f"metric {name}: {type(known).__name__} merged with {type(metric).__name__}")
            else:
                self._values[name] = known.merge(metric)  # type: ignore[arg-type]
        return self

    def items(self) -> Iterator[tuple[str, Metric]]:
        return iter(self._values.items())

    def results(self) -> dict[str, float]:
        return {name: metric.result for name, metric in self._values.items()}
