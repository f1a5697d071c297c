"""``Announced``: a publisher whose waits for engines are seen by others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from agentrl.engine.base import Canary
from agentrl.weights.base import Publication, Publisher

if TYPE_CHECKING:
    from torch import Tensor


class Announced:
    """``publisher`` around which ``waits_for(what, seconds)`` is told what is awaited; ``("", None)`` when it came."""

    def __init__(
        self, publisher: Publisher, waits_for: Callable[[str, float | None], None], *, timeout_seconds: float
    ) -> None:
        self._publisher = publisher
        self._waits_for = waits_for
        self._timeout_seconds = timeout_seconds

    def publish(self, tensors: Mapping[str, Tensor], *, version: int, canary: Canary | None) -> Publication:
        self._waits_for(f"the engines to serve version {version}", self._timeout_seconds)
        try:
            return self._publisher.publish(tensors, version=version, canary=canary)
        finally:
            self._waits_for("", None)

    def close(self) -> None:
        self._publisher.close()
