"""What the loop asks of its batches, and the scripted source that ships for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.batch.micro import MicroBatch
from agentrl.trainer.progress import Progress
from agentrl.weights.base import Publication


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The work of one optimizer step. ``metrics`` are values of the step that are known before it runs.

    ``microbatches`` are this rank's; where several ranks train, ``planned`` on rank 0 are those of all.
    """

    step: int
    microbatches: tuple[MicroBatch, ...]
    planned: tuple[MicroBatch, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)


class BatchSource(Protocol):
    """Called in this order: ``check``, ``published``, ``rewind``, then for each step ``next``, ``next_version``,
    ``published``, ``state`` (when a checkpoint is saved), ``ack``."""

    def check(self, progress: Progress, *, resumed: bool) -> None:
        """Raise ``ConfigError`` when training cannot begin at ``progress``; nothing was changed yet."""
        ...

    def rewind(self, progress: Progress, saved: Mapping[str, Any]) -> None:
        """Stand at ``progress``, with what ``state`` gave then; what was done later counts as not done."""
        ...

    def next(self, progress: Progress) -> Batch | None:
        """The batch of step ``progress.step + 1``; None when there is none left or training was asked to stop."""
        ...

    def next_version(self) -> int:
        """A number that no weights ever had."""
        ...

    def published(self, publication: Publication, progress: Progress, parent: int | None) -> None:
        """The engines serve ``progress.version`` now."""
        ...

    def ack(self, batch: Batch) -> None:
        """``batch`` is trained, and saved if a checkpoint was due."""
        ...

    def state(self) -> dict[str, Any]:
        """What ``rewind`` needs, JSON."""
        ...


class ScriptedBatchSource:
    """Gives ``batches`` in order; remembers what was published and acknowledged."""

    def __init__(self, batches: Sequence[Sequence[MicroBatch]]) -> None:
        self._batches = batches
        self._highest_version = -1
        self.publications: list[Publication] = []
        self.acknowledged: list[int] = []

    def check(self, progress: Progress, *, resumed: bool) -> None: ...

    def rewind(self, progress: Progress, saved: Mapping[str, Any]) -> None:
        self._highest_version = max(self._highest_version, saved.get("highest_version", -1))

    def next(self, progress: Progress) -> Batch | None:
        if progress.step >= len(self._batches):
            return None
        return Batch(step=progress.step + 1, microbatches=tuple(self._batches[progress.step]))

    def next_version(self) -> int:
        return self._highest_version + 1

    def published(self, publication: Publication, progress: Progress, parent: int | None) -> None:
        self._highest_version = max(self._highest_version, publication.version)
        self.publications.append(publication)

    def ack(self, batch: Batch) -> None:
        self.acknowledged.append(batch.step)

    def state(self) -> dict[str, Any]:
        return {"highest_version": self._highest_version}
