"""``Ranks``: what the trainer asks of the processes it runs on, and the answer when there is only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentrl.errors import AgentRLError

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")


class RankFailed(AgentRLError):
    """Another rank failed in a way nobody expected, or is gone; its own output has the traceback."""


class Ranks(Protocol):
    """All ranks call each of these in the same order; the work given to one runs on rank 0 only."""

    rank: int
    size: int

    def on_first(self, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0 while the others wait; all return its result or raise its ``AgentRLError``."""
        ...

    def scatter(self, work: Callable[[], Sequence[T]]) -> T:
        """As ``on_first``, but ``work`` returns one value for each rank, by rank."""
        ...

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank, on every rank."""
        ...

    def shard(self, root: nn.Module, layers: Sequence[nn.Module]) -> None:
        """Keep a part of each parameter of ``root`` here; gradients are summed over ranks. Call only ``root`` then."""
        ...

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors unsharded, on rank 0; empty on other ranks."""
        ...

    @property
    def checkpoint_group(self) -> dict[str, Any]:
        """Arguments of torch's distributed checkpoint."""
        ...


class OneRank:
    """Alone: everything is local."""

    rank = 0
    size = 1

    def on_first(self, work: Callable[[], T]) -> T:
        return work()

    def scatter(self, work: Callable[[], Sequence[T]]) -> T:
        (own,) = work()
        return own

    def gather(self, value: T) -> list[T]:
        return [value]

    def shard(self, root: nn.Module, layers: Sequence[nn.Module]) -> None: ...

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return tensors

    @property
    def checkpoint_group(self) -> dict[str, Any]:
        return {"no_dist": True}


ONE_RANK: Ranks = OneRank()
