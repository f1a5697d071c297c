"""Checked reading of a configuration: every mistake of a file is collected with its line, field and reason."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from agentdock.lines import Field, nearest

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One mistake. ``line`` is None where the file has no such place, as for a file that cannot be read."""

    line: int | None
    field: str
    reason: str

    def text(self, path: Path) -> str:
        place = str(path) if self.line is None else f"{path}:{self.line}"
        return f"{place}: {self.field}: {self.reason}" if self.field else f"{place}: {self.reason}"


class ConfigProblem(Exception):
    """A configuration that cannot be used; its text has one line for each of ``problems``, in their order."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.path = path
        self.problems = tuple(sorted(problems, key=lambda problem: problem.line or 0))
        super().__init__("\n".join(problem.text(path) for problem in self.problems))


@dataclass(slots=True)
class Findings:
    """What reading one file brought to light. ``notices`` are settings that have no effect here."""

    lines: dict[Field, int]
    problems: list[Problem] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def refuse(self, place: Field, reason: str) -> None:
        self.problems.append(Problem(line=nearest(self.lines, place), field=".".join(place), reason=reason))


class Table:
    """One table of the file. A getter notes a wrong value and returns the default; ``close`` names unknown keys."""

    def __init__(self, entries: Mapping[str, Any], findings: Findings, place: Field = ()) -> None:
        self.entries = entries
        self.findings = findings
        self.place = place
        self._known: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def refuse(self, key: str, reason: str) -> None:
        self.findings.refuse((*self.place, key) if key else self.place, reason)

    def text(self, key: str, default: str = "") -> str:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, str) and value:
            return value
        return self._wrong(key, value, "a text that is not empty", default)

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if value in choices:
            return value
        return self._wrong(key, value, "one of " + ", ".join(choices), default)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key)
        if value is None:
            return default
        return value if isinstance(value, bool) else self._wrong(key, value, "true or false", default)

    def whole(self, key: str, default: int, *, minimum: int = 0, maximum: int = 2**62) -> int:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        limits = f"from {minimum}" + (f" to {maximum}" if maximum < 2**62 else "")
        return self._wrong(key, value, f"a whole number {limits}", default)

    def seconds(self, key: str, default: float) -> float:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
            return float(value)
        return self._wrong(key, value, "a number of seconds above 0", default)

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        return self._wrong(key, value, "a list of texts", default)

    def named_texts(self, key: str) -> dict[str, str]:
        table = self.table(key)
        found: dict[str, str] = {}
        for name, text in table.entries.items():
            if isinstance(text, str):
                found[name] = text
            else:
                table.refuse(name, f"is {shown(text)}; expected a text")
        return found

    def table(self, key: str) -> Table:
        value = self._get(key)
        if value is not None and not isinstance(value, dict):
            self._wrong(key, value, "a table of names and values", None)
            value = None
        return Table(value or {}, self.findings, (*self.place, key))

    def tables(self, key: str) -> dict[str, Table]:
        """The tables of the table ``key``, by name."""
        outer = self.table(key)
        return {name: outer.table(name) for name in outer.entries}

    def without_effect(self, keys: Sequence[str], why: str) -> None:
        """Accept ``keys`` of other programs and note that they do nothing here."""
        for key in keys:
            if self._get(key) is not None:
                self.findings.notices.append(f"{'.'.join((*self.place, key))} {why}")

    def close(self) -> None:
        for key in self.entries:
            if key not in self._known:
                near = difflib.get_close_matches(key, self._known, 1)
                hint = f"did you mean {near[0]!r}?" if near else "known are " + ", ".join(sorted(self._known))
                self.refuse(key, f"is not known here; {hint}")

    def _get(self, key: str) -> Any:
        self._known.append(key)
        return self.entries.get(key)

    def _wrong(self, key: str, value: Any, expected: str, default: T) -> T:
        self.refuse(key, f"is {shown(value)}; expected {expected}")
        return default


def shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r}"
