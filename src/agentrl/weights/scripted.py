"""A publisher without engines: keeps what it was given, for tests of the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentrl.engine.base import Canary, Confirmation
from agentrl.engine.weights import tensor_hash
from agentrl.errors import WeightsError
from agentrl.weights.base import Publication

if TYPE_CHECKING:
    import torch


@dataclass(slots=True, kw_only=True)
class ScriptedPublisher:
    """``publications`` and ``canaries`` grow with each publish; versions in ``refused`` are a ``WeightsError``."""

    refused: frozenset[int] = frozenset()
    publications: list[Publication] = field(default_factory=list)
    canaries: list[Canary | None] = field(default_factory=list)
    closed: bool = False

    def publish(self, tensors: Mapping[str, torch.Tensor], *, version: int, canary: Canary | None) -> Publication:
        if version in self.refused:
            raise WeightsError(f"version {version} was not confirmed: engine scripted refuses it, as scripted")
        confirmation = Confirmation(url="scripted", version=version, canary_difference=0.0 if canary else None)
        publication = Publication(version=version, tensor_hash=tensor_hash(tensors), confirmations=(confirmation,))
        self.publications.append(publication)
        self.canaries.append(canary)
        return publication

    def close(self) -> None:
        self.closed = True
