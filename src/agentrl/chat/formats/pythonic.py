"""Pythonic: the reply starts with a list of calls with keyword arguments, ``[search(q="x"), now()]``."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import CUT, Attempt, Draft, Format, bad_arguments, malformed
from agentrl.chat.formats.jsonlike import skip_blanks
from agentrl.chat.formats.literals import LiteralError, Literals
from agentrl.types import CallStatus

CALL = re.compile(r"([^\W\d][\w-]*(?:\.[^\W\d][\w-]*)*)\s*(?=\()")
"""Names of tools may hold hyphens, which names of Python functions may not."""
START = re.compile(r"\s*(?:<\|python_start\|>\s*)?\[\s*(?=[^\W\d][\w.-]*\s*\()")
CUT_START = re.compile(r"\s*(?:<\|python_start\|>\s*)?\[\s*[^\W\d][\w.-]*\s*\Z")
AFTER = re.compile(r"\s*(?:<\|python_end\|>)?")


def parse(text: str, draft: Draft) -> None:
    start = START.match(text)
    if start is None:
        if not draft.context.finished and CUT_START.match(text):
            return draft.break_off(CUT, text)
        return draft.say(text)
    end = read_list(text, start.end(), draft)
    after = AFTER.match(text, end)
    return draft.say(text[after.end() if after else end :])


def read_list(text: str, position: int, draft: Draft) -> int:
    """Calls up to the closing bracket; the list ends early where something else stands."""
    while not text.startswith("]", position):
        if position == len(text):
            return end_unclosed(text, draft)
        if draft.exhausted:
            draft.give_up(text[position:])
            return len(text)
        attempt, end = read_call(text, position, len(text))
        end = skip_blanks(text, end)
        if end == len(text) and not draft.context.finished:
            attempt = malformed(CUT, text[position:], attempt.name)
        draft.add(attempt)
        if end < len(text) and text[end] not in ",]":
            draft.break_off(f"the list of calls goes on with {text[end : end + 20]!r}", text[end:])
            return len(text)
        position = skip_blanks(text, end + 1) if text.startswith(",", end) else end
    return position + 1


def end_unclosed(text: str, draft: Draft) -> int:
    """The closing bracket is missing: a normal stop excuses that, a cut after a comma does not."""
    if not draft.context.finished and not (draft.attempts and draft.attempts[-1].status is CallStatus.MALFORMED):
        draft.break_off(CUT, "")
    return len(text)


def read_call(text: str, start: int, limit: int) -> tuple[Attempt, int]:
    """The call at ``start`` and where it ends; a call with unusable arguments ends at its parenthesis."""
    named = CALL.match(text, start, limit)
    if named is None:
        return malformed("expected a call: name(argument=value)", text[start:limit]), limit
    literals = Literals(text, named.end(), limit)
    try:
        arguments = literals.keyword_arguments()
    except LiteralError as problem:
        end = Literals(text, named.end(), limit).end_of_brackets()
        if end is None:
            reason = f"the call is not complete, or a string or bracket in it is not closed: {problem}"
            return malformed(reason, text[start:limit], named[1]), limit
        return bad_arguments(named[1], str(problem), text[start:end]), end
    return Attempt(name=named[1], arguments=arguments), literals.position


FORMAT = Format(parse=parse)
