"""One row of a task file: which fields it may have, and what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ConfigError
from agentrl.types import Task

ALIASES: dict[str, tuple[str, ...]] = {
    "id": ("id", "task_id"),
    "query": ("query", "Question", "question"),
    "answer": ("answer", "Final answer"),
}
"""Other names of a field, in the order in which they are looked for."""

READ = frozenset({"scorer", "answer_schema", "system_prompt", "query_prompt", "messages", "tools", "setup", "metadata"})
TAG_NAME = re.compile(r"[^\W\d][\w.-]*\Z")
MODULE_ATTRIBUTE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")
DEFAULT_SCORER = "agentcpm"
NO_TRUTH = 'give the truth, or a scorer that needs none ("scorer": "none")'


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProblem:
    """``line`` is the physical line from 1, None for the whole file; ``field`` is None for the row itself."""

    line: int | None
    field: str | None
    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What depends on the scorers of the run."""

    known_scorers: Collection[str]
    needs_truth: Callable[[Any], bool]

    def truth_needed(self, scorer: Any) -> bool:
        """Whether any of a row's scorers needs the answer; an unusable one is reported under its own field."""
        try:
            return any(self.needs_truth(name) for name in scorer_names(scorer))
        except ConfigError:
            return True

    def refusal(self, name: str) -> str:
        """Why a scorer cannot be used; empty if it can."""
        if name in self.known_scorers or name.startswith("tool:"):
            return ""
        if not MODULE_ATTRIBUTE.match(name):
            known = ", ".join(sorted(self.known_scorers))
            return f"{name!r} is not one of {known}, and not of the form package.module:function"
        try:
            self.needs_truth(name)
        except ConfigError as error:
            return str(error)
        return ""


@dataclass(slots=True, kw_only=True)
class Row:
    """A row with the line it begins on. ``given`` leaves out fields that are null: those are not given."""

    line: int
    fields: Mapping[str, Any]
    given: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.given = {name: value for name, value in self.fields.items() if value is not None}

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, or of its first alias that is given."""
        return next((self.given[alias] for alias in ALIASES.get(name, (name,)) if alias in self.given), default)

    def as_task(self) -> Task:
        """The task; fields with no meaning here are kept in its metadata."""
        known = READ.union(*ALIASES.values())
        others = {name: value for name, value in self.fields.items() if name not in known}
        tools = self.get("tools")
        messages = self.get("messages")
        return Task(
            task_id=str(self.get("id")),
            query=self.get("query") or last_user_text(messages or ()),
            answer=self.get("answer"),
            scorer=self.get("scorer", DEFAULT_SCORER),
            answer_schema=self.get("answer_schema", "answer"),
            system_prompt=self.get("system_prompt"),
            query_prompt=self.get("query_prompt"),
            messages=tuple(messages) if messages else None,
            tools=None if tools is None else tuple(tools),
            setup=tuple(self.get("setup", ())),
            metadata={**self.get("metadata", {}), **others},
        )

    def problems(self, rules: Rules) -> Iterator[TaskProblem]:
        """Everything wrong with the row, in the order of its fields."""
        for check in (self._id, self._query, self._answer, self._scorer, self._answer_schema, self._others):
            yield from check(rules)

    def _id(self, rules: Rules) -> Iterator[TaskProblem]:
        value = self.get("id")
        if value is None:
            yield self.problem("id", "missing", "give every row an id of its own")
        elif isinstance(value, bool) or not isinstance(value, str | int):
            yield self.problem("id", "wrong_type", f"an id is text or a whole number, not {kind_of(value)}")
        elif not str(value).strip():
            yield self.problem("id", "empty", "give every row an id of its own")

    def _query(self, rules: Rules) -> Iterator[TaskProblem]:
        value = self.get("query")
        if value is None:
            if not self.get("messages"):
                yield self.problem("query", "missing", "give the question")
        elif not isinstance(value, str):
            yield self.problem("query", "wrong_type", f"the question is text, not {kind_of(value)}")
        elif not value.strip():
            yield self.problem("query", "empty", "the question is blank")

    def _answer(self, rules: Rules) -> Iterator[TaskProblem]:
        value, scorer = self.get("answer"), self.get("scorer", DEFAULT_SCORER)
        if value is None:
            if rules.truth_needed(scorer):
                yield self.problem("answer", "missing", f"scorer {scorer!r} needs it: {NO_TRUTH}")
        elif not acceptable_answer(value):
            yield self.problem(
                "answer", "wrong_type", f"an answer is text, number, boolean, or a list of those, not {kind_of(value)}"
            )
        elif is_blank(value) and rules.truth_needed(scorer):
            yield self.problem("answer", "empty", f"scorer {scorer!r} needs it: {NO_TRUTH}")

    def _scorer(self, rules: Rules) -> Iterator[TaskProblem]:
        value = self.get("scorer")
        if value is None:
            return
        for name in scorer_names(value):
            if not isinstance(name, str):
                yield self.problem(
                    "scorer", "wrong_type", f"a scorer is a name, or a list of names, not {kind_of(name)}"
                )
            elif refusal := rules.refusal(name):
                yield self.problem("scorer", "unknown", refusal)

    def _answer_schema(self, rules: Rules) -> Iterator[TaskProblem]:
        value = self.get("answer_schema")
        if isinstance(value, str) and value != "boxed" and difflib.get_close_matches(value, ["boxed"], cutoff=0.8):
            yield self.problem("answer_schema", "invalid", f"{value!r} looks like boxed misspelt")
        if value is not None and not (isinstance(value, str) and TAG_NAME.match(value)):
            yield self.problem(
                "answer_schema", "invalid", f"{value!r} is not boxed and not the bare name of a tag, like answer"
            )

    def _others(self, rules: Rules) -> Iterator[TaskProblem]:
        for name in ("system_prompt", "query_prompt"):
            if not isinstance(self.get(name, ""), str):
                yield self.problem(name, "wrong_type", f"a prompt is text, not {kind_of(self.get(name))}")
        tools = self.get("tools", [])
        if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
            yield self.problem("tools", "wrong_type", "tools is a list of tool names")
        for name in ("setup", "messages"):
            value = self.get(name, [])
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                yield self.problem(name, "wrong_type", f"{name} is a list of objects")
        if not isinstance(self.get("metadata", {}), dict):
            yield self.problem("metadata", "wrong_type", f"metadata is an object, not {kind_of(self.get('metadata'))}")

    def problem(self, field_name: str, kind: str, message: str) -> TaskProblem:
        return TaskProblem(line=self.line, field=field_name, kind=kind, message=message)


def scorer_names(scorer: Any) -> list[Any]:
    """The names in a row's scorer: one, or those of a weighted list of ``{"scorer": name, "weight": w}``."""
    parts = scorer if isinstance(scorer, list) else [scorer]
    return [part.get("scorer", part.get("name")) if isinstance(part, dict) else part for part in parts]


def acceptable_answer(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, str | int | float) for item in value)
    return isinstance(value, str | int | float)


def is_blank(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(is_blank, value))
    return isinstance(value, str) and not value.strip()


def last_user_text(messages: Collection[Mapping[str, Any]]) -> str:
    texts = [str(message.get("content") or "") for message in messages if message.get("role") == "user"]
    return texts[-1] if texts else ""


def kind_of(value: Any) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)
