"""Distributions of lengths and seconds: constant, log-normal, or drawn from the numbers of a trace file.

``3`` or ``constant:3``; ``lognormal:p50=2,p99=40``; ``trace:FILE`` (one number a line).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Protocol

from agentrl.errors import ConfigError

P99 = NormalDist().inv_cdf(0.99)


class Distribution(Protocol):
    @property
    def mean(self) -> float: ...

    def draw(self, random: Random) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    value: float

    @property
    def mean(self) -> float:
        return self.value

    def draw(self, random: Random) -> float:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormal:
    """By its median and its 99th percentile, which ``p99 / p50`` tells the tail of."""

    p50: float
    p99: float

    @property
    def sigma(self) -> float:
        return math.log(self.p99 / self.p50) / P99

    @property
    def mean(self) -> float:
        return self.p50 * math.exp(self.sigma**2 / 2)

    def draw(self, random: Random) -> float:
        return self.p50 * math.exp(random.gauss(0.0, self.sigma))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Each value as likely as any other."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return math.fsum(self.values) / len(self.values)

    def draw(self, random: Random) -> float:
        return random.choice(self.values)


def distribution(text: str, *, setting: str) -> Distribution:
    """Raise ``ConfigError`` naming ``setting`` for what is no distribution."""
    kind, colon, rest = text.partition(":")
    if not colon:
        return Constant(value=number(text, setting))
    if kind == "constant":
        return Constant(value=number(rest, setting))
    if kind == "lognormal":
        return log_normal(rest, setting)
    if kind == "trace":
        return trace(Path(rest), setting)
    raise ConfigError(
        f"{text!r} is no distribution: expected 3, constant:3, lognormal:p50=2,p99=40 or trace:FILE", setting=setting
    )


def log_normal(text: str, setting: str) -> LogNormal:
    values: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.partition("=")
        values[name.strip()] = value
    if set(values) != {"p50", "p99"}:
        raise ConfigError(f"expected lognormal:p50=2,p99=40, got lognormal:{text}", setting=setting)
    p50, p99 = number(values["p50"], setting), number(values["p99"], setting)
    if not 0 < p50 <= p99:
        raise ConfigError(f"expected 0 < p50 <= p99, got p50 {p50:g} and p99 {p99:g}", setting=setting)
    return LogNormal(p50=p50, p99=p99)


def trace(path: Path, setting: str) -> Trace:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", setting=setting) from error
    values = tuple(
        number(line, f"{setting} ({path}, line {index})") for index, line in enumerate(lines, 1) if line.strip()
    )
    if not values:
        raise ConfigError(f"{path} holds no number", setting=setting)
    return Trace(values=values)


def number(text: str, setting: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ConfigError(f"expected a number of at least 0, got {text.strip()!r}", setting=setting)
    return value
