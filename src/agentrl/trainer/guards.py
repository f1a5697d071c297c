"""What stops a step before its weights change: numbers that are not finite, and an engine that scores otherwise.

The micro-batches of a refused step are saved, so that it can be run again alone: ``load_replay``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agentrl.batch.micro import MicroBatch
from agentrl.errors import AgentRLError
from agentrl.parallel import ONE_RANK, Ranks
from agentrl.telemetry import StepRecord

ENOUGH_FOR_P999 = 10_000
"""Ten tokens lie beyond the 99.9th percentile then. Over fewer it is one or two of the widest, which rounding alone
spreads over a factor of ten from step to step, and only the maximum is held."""


class StepRefused(AgentRLError):
    """The step was not applied: its numbers are wrong. The message names the numbers and the saved batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapLimits:
    """Largest |trainer - engine| log-prob of tokens sampled under the trainer's own weights (design: P14, fp32)."""

    maximum: float = 1e-4
    p999: float = 1e-5

    @classmethod
    def of_depth(cls, num_layers: int) -> GapLimits:
        """Rounding adds up over layers, as a random walk: the percentile is that of the small model's two. On the 30
        of SmolLM2-135M engine and trainer are 1.7e-5 apart, and each is as far from the same model in float64."""
        return cls(p999=cls().p999 * max(1.0, math.sqrt(num_layers / 2)))


def require_finite(
    record: StepRecord, microbatches: Sequence[MicroBatch], replay: Path, ranks: Ranks = ONE_RANK
) -> None:
    """Raise ``StepRefused`` unless loss and gradient norm are finite."""
    bad = {name: record[name] for name in ("loss", "grad_norm") if not math.isfinite(record[name])}
    if bad:
        refuse(f"{', '.join(f'{name} is {value}' for name, value in bad.items())}", record, microbatches, replay, ranks)


def require_gap(
    record: StepRecord,
    limits: GapLimits | None,
    microbatches: Sequence[MicroBatch],
    replay: Path,
    ranks: Ranks = ONE_RANK,
) -> None:
    """Raise ``StepRefused`` when engine and trainer disagree on tokens they both scored; None turns this off."""
    compared = record.values.get("logprob_gap_tokens", 0.0)
    if limits is None or not compared:
        return
    maximum, p999 = record["logprob_gap_max"], record["logprob_gap_p999"]
    too_wide = not maximum <= limits.maximum or (compared >= ENOUGH_FOR_P999 and not p999 <= limits.p999)
    if too_wide:
        refuse(
            f"engine and trainer disagree on the log-probs of {compared:.0f} tokens sampled under the same weights: "
            f"max {maximum:.2e} (limit {limits.maximum:.0e}), p99.9 {p999:.2e} (limit {limits.p999:.0e}, from "
            f"{ENOUGH_FOR_P999} tokens on). Every ratio of this run would be off by that",
            record,
            microbatches,
            replay,
            ranks,
        )


def refuse(what: str, record: StepRecord, microbatches: Sequence[MicroBatch], replay: Path, ranks: Ranks) -> None:
    """The numbers are the same on every rank, so all of them come here; rank 0 has the whole batch."""
    ranks.on_first(lambda: save_replay(replay, microbatches))
    raise StepRefused(f"step {record.step}: {what}; the weights are unchanged, the batch is saved in {replay}")


def save_replay(path: Path, microbatches: Sequence[MicroBatch]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {
        f"{index}/{field.name}": getattr(micro, field.name)
        for index, micro in enumerate(microbatches)
        for field in dataclasses.fields(micro)
    }
    np.savez_compressed(path, **arrays)


def load_replay(path: Path) -> tuple[MicroBatch, ...]:
    """The micro-batches of a refused step, as ``forward_backward`` takes them."""
    names = [field.name for field in dataclasses.fields(MicroBatch)]
    with np.load(path) as saved:
        count = len({key.partition("/")[0] for key in saved.files})
        return tuple(MicroBatch(**{name: saved[f"{index}/{name}"] for name in names}) for index in range(count))
