"""Why a URL was not fetched: refused by a rule, or failed on the way."""

from __future__ import annotations


class FetchProblem(Exception):
    """A URL could not be fetched; the text is a sentence for the model and the operator."""


class FetchRefused(FetchProblem):
    """A rule forbids it; asking again does not help. ``rule`` is its one-word name."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"refused ({rule}): {reason}")
        self.rule = rule
        self.reason = reason


class FetchFailed(FetchProblem):
    """The network or the other side failed; it may work later."""
