"""Llama 3: the reply starts with a JSON object (or ``<|python_tag|>`` and one); several are separated by ``;``."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import CUT, Draft, Format, attempt_from
from agentrl.chat.formats.jsonlike import NotJson, decode_at, end_of_balanced, repair_at, skip_blanks

TAG = "<|python_tag|>"
LOOKS_LIKE_CALL = re.compile(r'\{\s*"(?:name|type|function)"\s*:')
SEPARATORS = re.compile(r"[\s;,]*")


def parse(text: str, draft: Draft) -> None:
    start = skip_blanks(text, 0)
    tagged = text.startswith(TAG, start)
    if tagged:
        start = skip_blanks(text, start + len(TAG))
    if not text.startswith("{", start):
        return read_other(text, tagged, draft)
    position = start
    while text.startswith("{", position):
        if draft.exhausted:
            return draft.give_up(text[position:])
        end = read_object(text, position, tagged or bool(draft.attempts), draft)
        if end is None:
            break
        separators = SEPARATORS.match(text, end)
        position = separators.end() if separators else end
    return draft.say(text[position:])


def read_other(text: str, tagged: bool, draft: Draft) -> None:
    """No object at the start: prose, or a tag before something else."""
    if tagged:
        return draft.break_off(f"{TAG} must be followed by a JSON object" if draft.context.finished else CUT, text)
    return draft.say(text)


def read_object(text: str, start: int, tagged: bool, draft: Draft) -> int | None:
    """Read the object at ``start`` as a call and return its end; None leaves it as content.

    Without the tag, an object that has not both a name and arguments is text.
    """
    try:
        decoded = decode_at(text, start)
    except NotJson as problem:
        return read_broken(text, start, tagged, problem, draft)
    if not tagged and not is_call(decoded.value):
        return None
    draft.add(attempt_from(decoded.value, text[start : decoded.end]))
    return decoded.end


def read_broken(text: str, start: int, tagged: bool, problem: NotJson, draft: Draft) -> int | None:
    if not tagged and not LOOKS_LIKE_CALL.match(text, start):
        return None
    if problem.truncated and not draft.context.finished:
        draft.break_off(CUT, text[start:])
        return len(text)
    end = end_of_balanced(text, start)
    if end is None:
        draft.break_off(str(problem), text[start:])
        return len(text)
    try:
        repaired = repair_at(text, start, end)
    except NotJson:
        draft.break_off(str(problem), text[start:end])
        return end
    if not tagged and not is_call(repaired.value):
        return None
    draft.add(attempt_from(repaired.value, text[start:end], repaired=True))
    return end


def is_call(value: object) -> bool:
    return isinstance(value, dict) and "name" in value and ("parameters" in value or "arguments" in value)


FORMAT = Format(parse=parse)
