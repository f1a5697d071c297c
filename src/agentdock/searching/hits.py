"""What a search gives, and the protocol that every engine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_TITLE_CHARACTERS = 200
MAX_SNIPPET_CHARACTERS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result. ``rank`` starts at 1; ``url`` and ``date`` may be empty."""

    rank: int
    title: str
    url: str
    snippet: str
    engine: str
    date: str = ""

    def as_fields(self) -> dict[str, Any]:
        fields = {"rank": self.rank, "title": self.title, "url": self.url, "snippet": self.snippet}
        return fields | {"engine": self.engine} | ({"date": self.date} if self.date else {})


class EngineFailed(Exception):
    """An engine gave no results; the text is a sentence without any key in it.

    With ``retryable`` the same search may work later. For ``rest_seconds`` the engine should not be asked again.
    """

    def __init__(self, reason: str, *, retryable: bool, rest_seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.rest_seconds = rest_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One result as a service gives it; any text may be empty."""

    title: str = ""
    url: str = ""
    snippet: str = ""
    date: str = ""


class UnreadableAnswer(Exception):
    """A service answered, but not with results; the text goes on after its name."""


class Engine(Protocol):
    """Something that can be searched."""

    name: str

    async def search(self, query: str, num: int) -> Sequence[Hit]:
        """At most ``num`` hits, the best first; raise ``EngineFailed``."""
        ...

    async def close(self) -> None: ...


def one_line(text: str, limit: int) -> str:
    """``text`` without line breaks, cut at a blank before ``limit`` characters."""
    line = " ".join(text.split())
    if len(line) <= limit:
        return line
    cut = line[:limit]
    return (cut.rpartition(" ")[0] if " " in cut[limit // 2 :] else cut) + " ..."
