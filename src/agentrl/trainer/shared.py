"""Batches, publisher and stop of several ranks: rank 0 speaks with the world outside, the others hear of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from agentrl.batch.plan import padded
from agentrl.engine.base import Canary
from agentrl.parallel import Ranks
from agentrl.trainer.batches import Batch, BatchSource
from agentrl.trainer.progress import Progress
from agentrl.weights.base import Publication, Publisher

if TYPE_CHECKING:
    from torch import Tensor


class Stop(Protocol):
    """``threading.Event`` is one."""

    def is_set(self) -> bool: ...


class SharedStop:
    """The stop of rank 0, so that all ranks end after the same step."""

    def __init__(self, ranks: Ranks, stop: Stop) -> None:
        self._ranks = ranks
        self._stop = stop

    def is_set(self) -> bool:
        return self._ranks.on_first(self._stop.is_set)


class SharedSource:
    """A ``BatchSource`` on every rank, ``source`` on rank 0 (None elsewhere); each gets its part of a batch."""

    def __init__(self, ranks: Ranks, source: BatchSource | None) -> None:
        self._ranks = ranks
        self._source = source

    @property
    def _first(self) -> BatchSource:
        assert self._source is not None, "only rank 0 has the source"
        return self._source

    def check(self, progress: Progress, *, resumed: bool) -> None:
        self._ranks.on_first(lambda: self._first.check(progress, resumed=resumed))

    def rewind(self, progress: Progress, saved: Mapping[str, Any]) -> None:
        self._ranks.on_first(lambda: self._first.rewind(progress, saved))

    def next(self, progress: Progress) -> Batch | None:
        return self._ranks.scatter(lambda: parts(self._first.next(progress), self._ranks.size))

    def next_version(self) -> int:
        return self._ranks.on_first(lambda: self._first.next_version())

    def published(self, publication: Publication, progress: Progress, parent: int | None) -> None:
        self._ranks.on_first(lambda: self._first.published(publication, progress, parent))

    def ack(self, batch: Batch) -> None:
        self._ranks.on_first(lambda: self._first.ack(batch))

    def state(self) -> dict[str, Any]:
        return self._ranks.on_first(lambda: self._first.state())


class SharedPublisher:
    """Makes sharded tensors whole on rank 0 and publishes them there; all ranks hear what it reached."""

    def __init__(self, ranks: Ranks, publisher: Publisher | None) -> None:
        self._ranks = ranks
        self._publisher = publisher

    def publish(self, tensors: Mapping[str, Tensor], *, version: int, canary: Canary | None) -> Publication:
        whole = self._ranks.whole(tensors)

        def work() -> Publication:
            assert self._publisher is not None, "only rank 0 has the publisher"
            return self._publisher.publish(whole, version=version, canary=canary)

        return self._ranks.on_first(work)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()


def parts(batch: Batch | None, size: int) -> list[Batch | None]:
    """The part of each rank: neighbours go to different ranks, and all get equally many micro-batches. That of rank 0
    keeps the whole, for a replay."""
    if batch is None:
        return [None] * size
    whole = padded(batch.microbatches, size)
    split = [replace(batch, microbatches=whole[rank::size]) for rank in range(size)]
    return [replace(split[0], planned=batch.microbatches), *split[1:]]
