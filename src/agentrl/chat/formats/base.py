"""What every tool-call format returns, and how an attempted call is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.chat.formats.jsonlike import NotJson, decode
from agentrl.types import CallStatus

MAX_BROKEN = 32
"""Broken calls read per reply. What follows is reported as one more, which keeps hostile replies linear in time."""

MAX_MENTIONS = 64
"""Tags in prose per reply, for the same reason."""

CUT = "the reply was cut by the length limit before this call was complete; write a shorter call"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """``finished`` is False when the reply was cut by the length limit. ``tools`` maps declared names to schemas."""

    finished: bool = True
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One call as written, before it is compared with the declared tools."""

    name: str = ""
    arguments: dict[str, Any] | None = None
    status: CallStatus = CallStatus.OK
    reason: str = ""
    id: str = ""
    repaired: bool = False
    raw: str = ""


class Draft:
    """Collects content and attempts in the order of the text."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.attempts: list[Attempt] = []
        self._pieces: list[str] = []
        self._num_broken = 0
        self._num_mentions = 0

    @property
    def content(self) -> str:
        return "".join(self._pieces).strip()

    @property
    def exhausted(self) -> bool:
        return self._num_broken >= MAX_BROKEN or self._num_mentions >= MAX_MENTIONS

    def say(self, text: str) -> None:
        self._pieces.append(text)

    def mention(self, tag: str) -> None:
        """A tag that begins no call is text."""
        self.say(tag)
        self._num_mentions += 1

    def add(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        self._num_broken += attempt.status is CallStatus.MALFORMED

    def break_off(self, reason: str, raw: str, name: str = "") -> None:
        """Report an attempt that is no call. ``raw`` is its text."""
        self.add(Attempt(name=name, status=CallStatus.MALFORMED, reason=reason, raw=raw))

    def give_up(self, raw: str) -> None:
        limits = f"{MAX_BROKEN} broken calls or {MAX_MENTIONS} tags without a call"
        self.break_off(f"more than {limits} in one reply; the rest was not read", raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """``parse`` fills a draft from the text behind the reasoning, whose tags are ``reasoning``."""

    parse: Callable[[str, Draft], None]
    reasoning: tuple[str, str] = ("<think>", "</think>")


def read_blocks(text: str, mark: str, read_block: Callable[[str, int, Draft], int], draft: Draft) -> None:
    """Say what stands between blocks, and let ``read_block`` read each one that ``mark`` opens.

    It is given where the mark stands and returns where the text goes on.
    """
    position = 0
    while (found := text.find(mark, position)) >= 0:
        draft.say(text[position:found])
        if draft.exhausted:
            return draft.give_up(text[found:])
        position = read_block(text, found, draft)
    return draft.say(text[position:])


def attempt_from(value: Any, raw: str, *, repaired: bool = False) -> Attempt:
    """Read an object with ``name`` and ``arguments`` (or ``parameters``). ``raw`` is kept where it is unusable."""
    if not isinstance(value, dict):
        return malformed(f'a call is a JSON object with "name" and "arguments", not {kind_of(value)}', raw)
    name = value.get("name")
    if not isinstance(name, str) or not name.strip():
        return malformed('the call has no "name"; write the name of the tool as a string', raw)
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if key is None:
        return malformed('the call has no "arguments"; write "arguments": {} if the tool needs none', raw, name)
    given_id = value.get("id")
    call_id = given_id if isinstance(given_id, str) else ""
    return with_arguments(name, value[key], raw, call_id=call_id, repaired=repaired)


def with_arguments(name: str, arguments: Any, raw: str, *, call_id: str = "", repaired: bool = False) -> Attempt:
    """A call whose arguments are an object, or a string holding one (decoded exactly once)."""
    if isinstance(arguments, str):
        try:
            arguments = decode(arguments)
        except NotJson as problem:
            return bad_arguments(name, f"the arguments are a string that is not a JSON object: {problem}", raw, call_id)
    if not isinstance(arguments, dict):
        return bad_arguments(name, f"the arguments must be a JSON object, not {kind_of(arguments)}", raw, call_id)
    return Attempt(name=name, arguments=arguments, id=call_id, repaired=repaired)


def malformed(reason: str, raw: str, name: str = "") -> Attempt:
    return Attempt(name=name, status=CallStatus.MALFORMED, reason=reason, raw=raw)


def bad_arguments(name: str, reason: str, raw: str, call_id: str = "") -> Attempt:
    return Attempt(name=name, status=CallStatus.BAD_ARGUMENTS, reason=reason, id=call_id, raw=raw)


def kind_of(value: Any) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object"}
    return names[type(value)]
