"""Mistral: ``[TOOL_CALLS]`` before a JSON list of calls, or before ``name[ARGS]{...}``."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import CUT, Draft, Format, attempt_from, read_blocks, with_arguments
from agentrl.chat.formats.jsonlike import NotJson, decode_at, end_of_balanced, repair_at, skip_blanks

MARK = "[TOOL_CALLS]"
NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*([\w.-]+)\s*)?(\[ARGS\]\s*)?(?=\{)")
CUT_NAME = re.compile(r"\s*[\w.-]*(?:\[[A-Z_]*\]?[\w.-]*)*\s*\Z")
NEXT_CALL = re.compile(r"\[TOOL_CALLS\]\s*(?:\[\s*\{|[\w.-]+\s*(?:\[|\{))")


def parse(text: str, draft: Draft) -> None:
    read_blocks(text, MARK, read_block, draft)


def read_block(text: str, opening: int, draft: Draft) -> int:
    start = opening + len(MARK)
    first = skip_blanks(text, start)
    if text.startswith("[", first) and text[skip_blanks(text, first + 1) :][:1] in ("{", "]", ""):
        return read_list(text, opening, first + 1, draft)
    if named := NAME.match(text, start):
        return read_named(text, opening, named, draft)
    if not draft.context.finished and CUT_NAME.match(text, start):
        draft.break_off(CUT, text[opening:])
        return len(text)
    if text[:opening].strip():
        draft.mention(MARK)
        return start
    return read_broken(
        text, opening, f"{MARK} must be followed by a JSON list of calls, or name and a JSON object", draft
    )


def read_list(text: str, opening: int, position: int, draft: Draft) -> int:
    """Elements one by one, so that a broken or cut one leaves the others."""
    while True:
        start = skip_blanks(text, position)
        if text.startswith("]", start):
            return start + 1
        if not text.startswith("{", start):
            return end_list(text, opening, start, draft)
        try:
            decoded = decode_at(text, start)
        except NotJson as problem:
            end = end_of_balanced(text, start)
            if end is None:
                draft.break_off(CUT if problem.truncated and not draft.context.finished else str(problem), text[start:])
                return len(text)
            add_broken_element(text, start, end, str(problem), draft)
            if draft.exhausted:
                draft.give_up(text[end:])
                return len(text)
            position = skip_comma(text, end)
            continue
        position = skip_comma(text, decoded.end)
        if skip_blanks(text, position) == len(text) and not draft.context.finished:
            draft.break_off(CUT, text[start:])
            return len(text)
        draft.add(attempt_from(decoded.value, text[start : decoded.end]))


def add_broken_element(text: str, start: int, end: int, reason: str, draft: Draft) -> None:
    try:
        repaired = repair_at(text, start, end)
    except NotJson:
        return draft.break_off(reason, text[start:end])
    if repaired.end != end:
        return draft.break_off(reason, text[start:end])
    return draft.add(attempt_from(repaired.value, text[start:end], repaired=True))


def end_list(text: str, opening: int, position: int, draft: Draft) -> int:
    """The list is not closed: nothing follows, which a normal stop excuses, or something that is no call."""
    if position == len(text):
        if not draft.context.finished:
            draft.break_off(CUT, text[opening:])
        return position
    return read_broken(text, position, "the list of calls holds something that is no JSON object", draft)


def read_named(text: str, opening: int, named: re.Match[str], draft: Draft) -> int:
    try:
        decoded = decode_at(text, named.end())
    except NotJson as problem:
        if problem.truncated and not draft.context.finished:
            draft.break_off(CUT, text[opening:], named[1])
            return len(text)
        end = end_of_balanced(text, named.end())
        if end is None:
            return read_broken(text, opening, str(problem), draft)
        try:
            decoded = repair_at(text, named.end(), end)
        except NotJson:
            draft.break_off(str(problem), text[opening:end], named[1])
            return end
    raw = text[opening : decoded.end]
    draft.add(with_arguments(named[1], decoded.value, raw, call_id=named[2] or "", repaired=decoded.repaired))
    return decoded.end


def read_broken(text: str, start: int, reason: str, draft: Draft) -> int:
    following = NEXT_CALL.search(text, start + 1)
    end = following.start() if following else len(text)
    draft.break_off(reason, text[start:end])
    return end


def skip_comma(text: str, start: int) -> int:
    position = skip_blanks(text, start)
    return position + 1 if text.startswith((",", ";"), position) else position


FORMAT = Format(parse=parse)
