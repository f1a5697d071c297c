"""Supervised training: dialogues as rows of the same batches, through the same loop, without engines.

The tokens to learn carry the mask of sampled tokens and the loss is cross-entropy; packing, schedule, guards and
checkpoints are those of ``train``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from agentrl.batch.plan import plan_step
from agentrl.config import AlgoOptions, OptimOptions
from agentrl.engine.base import Canary
from agentrl.errors import ConfigError
from agentrl.trainer.batches import Batch
from agentrl.trainer.progress import Progress
from agentrl.types import DBRecordData, MaskCause, TurnSpan
from agentrl.weights.base import Publication

if TYPE_CHECKING:
    import torch

CROSS_ENTROPY = AlgoOptions(loss_calculater="CrossEntropy", token_level_loss=True)
Supervise = Literal["all", "last"]


class Turn(Protocol):
    """One reply and the context that is new before it; ``parent`` is the turn it extends, -1 at a start."""

    @property
    def prompt_ids(self) -> Sequence[int]: ...

    @property
    def reply_ids(self) -> Sequence[int]: ...

    @property
    def parent(self) -> int: ...


def supervised_row(name: str, turns: Sequence[Turn], *, supervise: Supervise = "all") -> DBRecordData:
    """A dialogue as a training row: its replies (``last``: only the last) are learned, all else is context."""
    token_ids: list[int] = []
    mask: list[MaskCause] = []
    spans: list[TurnSpan] = []
    for index, turn in enumerate(turns):
        start = len(token_ids)
        learned = supervise == "all" or index == len(turns) - 1
        token_ids += [*turn.prompt_ids, *turn.reply_ids]
        mask += [MaskCause.CONTEXT] * len(turn.prompt_ids)
        mask += [MaskCause.SAMPLED if learned else MaskCause.CONTEXT] * len(turn.reply_ids)
        spans.append(TurnSpan(start=start, end=len(token_ids), parent=turn.parent, advantage=1.0))
    return DBRecordData(
        record=name,
        task=name,
        seq=0,
        slot=0,
        token_ids=tuple(token_ids),
        mask=tuple(mask),
        behavior_logprobs=(math.nan,) * len(token_ids),
        versions=(-1,) * len(token_ids),
        turns=tuple(spans),
        start_version=-1,
        end_version=-1,
    )


def longest_path(row: DBRecordData) -> int:
    """Tokens of the longest context that the row has."""
    ends: list[int] = []
    for span in row.turns:
        ends.append((ends[span.parent] if span.parent >= 0 else 0) + span.end - span.start)
    return max(ends, default=0)


def without_over_long(rows: Sequence[DBRecordData], max_tokens: int) -> tuple[list[DBRecordData], int]:
    """The rows that fit, and how many do not. Raise ``ConfigError`` when none fits."""
    kept = [row for row in rows if longest_path(row) <= max_tokens]
    if not kept:
        shortest = min(longest_path(row) for row in rows)
        raise ConfigError(
            f"all {len(rows)} dialogues are longer than {max_tokens} tokens; the shortest has {shortest}",
            setting="--max_tokens",
        )
    return kept, len(rows) - len(kept)


@dataclass(slots=True, kw_only=True)
class DialogueBatchSource:
    """A ``BatchSource`` over ``rows``: each epoch in an order of its own; what a step trains depends on its number
    alone, so a resumed run goes on as if it had not stopped."""

    rows: Sequence[DBRecordData]
    optim: OptimOptions
    rows_per_step: int
    max_tokens_per_microbatch: int
    total_steps: int
    seed: int
    version: int = field(default=-1, init=False)

    def check(self, progress: Progress, *, resumed: bool) -> None: ...

    def rewind(self, progress: Progress, saved: Mapping[str, Any]) -> None: ...

    def next(self, progress: Progress) -> Batch | None:
        if progress.step >= self.total_steps:
            return None
        plan = plan_step(
            self.rows_of(progress.step),
            options=CROSS_ENTROPY,
            optim=self.optim,
            step_of_version=lambda version: progress.step,
            step=progress.step,
            max_tokens_per_microbatch=self.max_tokens_per_microbatch,
        )
        metrics = {name: metric.result for name, metric in plan.metrics.items()}
        return Batch(step=progress.step + 1, microbatches=plan.microbatches, metrics=metrics)

    def rows_of(self, step: int) -> list[DBRecordData]:
        """The rows of the step after ``step``; the last of an epoch may have fewer."""
        epoch, place = divmod(step, steps_per_epoch(len(self.rows), self.rows_per_step))
        order = list(self.rows)
        random.Random(f"{self.seed}/{epoch}").shuffle(order)
        return order[place * self.rows_per_step : (place + 1) * self.rows_per_step]

    def next_version(self) -> int:
        return self.version + 1

    def published(self, publication: Publication, progress: Progress, parent: int | None) -> None:
        self.version = max(self.version, progress.version)

    def ack(self, batch: Batch) -> None: ...

    def state(self) -> dict[str, Any]:
        return {}


def steps_per_epoch(num_rows: int, rows_per_step: int) -> int:
    return math.ceil(num_rows / rows_per_step)


@dataclass(frozen=True, slots=True)
class NoEngines:
    """A ``Publisher`` for training that nobody samples from."""

    def publish(self, tensors: Mapping[str, torch.Tensor], *, version: int, canary: Canary | None) -> Publication:
        return Publication(version=version, tensor_hash="", confirmations=())

    def close(self) -> None: ...
