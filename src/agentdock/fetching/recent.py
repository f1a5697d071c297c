"""Pages that were read a moment ago, so that the parts of a long one fit together and are fetched once."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """A bounded memory of at most ``max_size`` in all; the least recently used goes first."""

    def __init__(
        self,
        *,
        keep_seconds: float,
        max_size: int,
        size_of: Callable[[T], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_seconds = keep_seconds
        self._max_size = max_size
        self._size_of = size_of
        self._clock = clock
        self._size = 0
        self._entries: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def get(self, key: str) -> T | None:
        if key not in self._entries:
            return None
        since, value = self._entries[key]
        if self._clock() - since >= self._keep_seconds:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return value

    def put(self, key: str, value: T) -> None:
        if key in self._entries:
            self._drop(key)
        self._entries[key] = (self._clock(), value)
        self._size += self._size_of(value)
        while self._size > self._max_size:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: str) -> None:
        _, value = self._entries.pop(key)
        self._size -= self._size_of(value)
