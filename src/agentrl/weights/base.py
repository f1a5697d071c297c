"""How new weights reach the engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentrl.engine.base import Canary, Confirmation

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What a publish reached. ``tensor_hash`` identifies the weights (sha256 over names, dtypes, shapes, bytes)."""

    version: int
    tensor_hash: str
    confirmations: tuple[Confirmation, ...]

    @property
    def canary_difference(self) -> float | None:
        seen = [c.canary_difference for c in self.confirmations if c.canary_difference is not None]
        return max(seen, default=None)


class Publisher(Protocol):
    """``publish`` returns once every engine confirmed ``version``; an engine that did not is a ``WeightsError``."""

    def publish(self, tensors: Mapping[str, torch.Tensor], *, version: int, canary: Canary | None) -> Publication: ...

    def close(self) -> None: ...


EngineUrls = Callable[[], Sequence[str]]
"""Where to find the engines now; injected, because publishers do not know the store."""
