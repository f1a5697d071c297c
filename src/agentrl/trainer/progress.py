"""``Progress``: where training stands."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """``step`` optimizer steps are done; their weights are ``version`` (a number that no other weights ever have)."""

    step: int = 0
    version: int = 0
