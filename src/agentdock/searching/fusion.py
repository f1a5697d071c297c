"""Several engines behind one search: the first that answers counts, one that is busy rests as long as it asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentdock.searching.hits import Engine, EngineFailed, Hit


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What ``engine`` gave; ``passed_over`` says of each engine before it why it gave nothing."""

    engine: str
    hits: tuple[Hit, ...]
    passed_over: tuple[str, ...] = ()


class Fusion:
    """Asks ``engines`` in their order. An empty answer is an answer; only a failure goes on to the next engine."""

    def __init__(self, engines: Sequence[Engine], *, clock: Callable[[], float] = time.monotonic) -> None:
        if not engines:
            raise ValueError("there is no engine to search with")
        self._engines = {engine.name: engine for engine in engines}
        self._clock = clock
        self._rests_until: dict[str, float] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._engines)

    async def search(self, query: str, num: int, *, engine: str = "") -> Found:
        """``num`` hits of the first engine that answers, or of ``engine`` alone; raise ``EngineFailed``."""
        asked = [self._engines[engine]] if engine else list(self._engines.values())
        failures: list[EngineFailed] = []
        for candidate in asked:
            try:
                hits = await self._ask(candidate, query, num)
            except EngineFailed as failure:
                failures.append(failure)
                continue
            return Found(engine=candidate.name, hits=tuple(hits), passed_over=tuple(map(str, failures)))
        raise EngineFailed("; ".join(map(str, failures)), retryable=any(failure.retryable for failure in failures))

    async def _ask(self, engine: Engine, query: str, num: int) -> Sequence[Hit]:
        wait = self._rests_until.get(engine.name, -math.inf) - self._clock()
        if wait > 0:
            raise EngineFailed(f"{engine.name} is not asked for another {math.ceil(wait)} s", retryable=True)
        try:
            return await engine.search(query, num)
        except EngineFailed as failure:
            if failure.rest_seconds > 0:
                self._rests_until[engine.name] = self._clock() + failure.rest_seconds
            raise

    async def close(self) -> None:
        for engine in self._engines.values():
            await engine.close()
