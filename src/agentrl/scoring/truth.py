"""What a scorer is given to compare with: the expected answer as text that also carries query and metadata."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping
from typing import Any

KEYS = ("query", "answer", "metadata")


class Truth(str):
    """The answer as a string for ``(answer, truth)`` functions, and a mapping for those that want more.

    ``truth == "42"``, ``truth.strip()``, ``float(truth)`` see the answer; ``truth["answer"]`` (its value as the task
    file has it), ``truth["query"]``, ``truth["metadata"]``, ``truth.get(...)`` and ``dict(truth)`` the task.
    """

    __slots__ = ("fields",)
    fields: Mapping[str, Any]

    def __new__(cls, answer: Any, *, query: str = "", metadata: Mapping[str, Any] | None = None) -> Truth:
        truth = super().__new__(cls, "" if answer is None else str(answer))
        truth.fields = {"query": query, "answer": answer, "metadata": dict(metadata or {})}
        return truth

    def __getitem__(self, key: Any) -> Any:
        return self.fields[key] if key in KEYS else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key in KEYS or (isinstance(key, str) and super().__contains__(key))

    def __eq__(self, other: object) -> bool:
        return str.__eq__(self, other) if isinstance(other, str) else other == self.fields["answer"]

    def __hash__(self) -> int:
        return str.__hash__(self)

    def get(self, key: str, default: Any = None) -> Any:
        return self.fields.get(key, default)

    def keys(self) -> KeysView[str]:
        return self.fields.keys()

    def items(self) -> ItemsView[str, Any]:
        return self.fields.items()

    def values(self) -> Iterator[Any]:
        return iter(self.fields.values())


def accepted_answers(answer: Any) -> list[Any]:
    """Every answer that counts as right; a list in a task means any of them. Zero and False are answers, blanks not."""
    answers = list(answer) if isinstance(answer, list | tuple) else [answer]
    return [each for each in answers if each is not None and str(each).strip()]
