"""Formats whose calls stand between special tokens: a header, a JSON object, an end token."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrl.chat.formats.base import CUT, Draft, with_arguments
from agentrl.chat.formats.jsonlike import Decoded, NotJson, decode_at, end_of_balanced, repair_at, skip_blanks


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """``header`` matches behind ``begin`` up to the JSON and ``name_of`` reads (name, id) from it.

    ``around`` are tokens around all calls, which are layout. ``behind`` is layout between the JSON and ``end``.
    """

    begin: str
    end: str
    around: tuple[str, ...]
    header: re.Pattern[str]
    name_of: Callable[[re.Match[str], Draft], tuple[str, str]]
    behind: re.Pattern[str]


def read_calls(text: str, marks: Marks, draft: Draft) -> None:
    position = 0
    while (found := text.find(marks.begin, position)) >= 0:
        say_without(text[position:found], marks.around, draft)
        if draft.exhausted:
            return draft.give_up(text[found:])
        position = read_call(text, found, marks, draft)
    say_without(text[position:], marks.around, draft)
    if not draft.attempts and text.rstrip().endswith(marks.around[::2]):
        draft.break_off(
            "no call follows the token that opens them" if draft.context.finished else CUT, text.rstrip()[-40:]
        )
    return None


def say_without(text: str, layout: tuple[str, ...], draft: Draft) -> None:
    for token in layout:
        text = text.replace(token, "")
    draft.say(text)


def read_call(text: str, opening: int, marks: Marks, draft: Draft) -> int:
    start = opening + len(marks.begin)
    header = marks.header.match(text, start)
    if header is None:
        return read_broken(text, opening, "the call has no name, or no JSON object with its arguments", marks, draft)
    name, call_id = marks.name_of(header, draft)
    if not name:
        return read_broken(text, opening, f"the call names no tool, its id is {call_id[:40]!r}", marks, draft)
    try:
        decoded = decode_value(text, header.end(), draft)
    except NotJson as problem:
        if problem.truncated and not draft.context.finished:
            draft.break_off(CUT, text[opening:], name)
            return len(text)
        return read_broken(text, opening, str(problem), marks, draft, name)
    layout = marks.behind.match(text, decoded.end)
    position = layout.end() if layout else skip_blanks(text, decoded.end)
    closed = text.startswith(marks.end, position)
    if not closed and not draft.context.finished and marks.end.startswith(text[position:][: len(marks.end)]):
        draft.break_off(CUT, text[opening:], name)
        return len(text)
    if not closed and position < len(text) and not text.startswith((marks.begin, *marks.around), position):
        found = text[position : position + 20]
        return read_broken(
            text, opening, f"the JSON is followed by {found!r} instead of {marks.end}", marks, draft, name
        )
    raw = text[opening:position]
    draft.add(with_arguments(name, decoded.value, raw, call_id=call_id, repaired=decoded.repaired))
    return position + len(marks.end) if closed else position


def decode_value(text: str, start: int, draft: Draft) -> Decoded:
    try:
        return decode_at(text, start)
    except NotJson as problem:
        if problem.truncated and not draft.context.finished:
            raise
        end = end_of_balanced(text, start)
        if end is None:
            raise
        try:
            return repair_at(text, start, end)
        except NotJson:
            raise problem from None


def read_broken(text: str, opening: int, reason: str, marks: Marks, draft: Draft, name: str = "") -> int:
    """Report the call; it reaches to its last end token before the next call's head, or to that head."""
    start = opening + len(marks.begin)
    limit = next_call(text, start, marks)
    close = text.rfind(marks.end, start, limit)
    end = close + len(marks.end) if close >= 0 else limit
    cut = close < 0 and limit == len(text) and not draft.context.finished
    draft.break_off(CUT if cut else reason, text[opening:end], name)
    return end


def next_call(text: str, start: int, marks: Marks) -> int:
    """Where the next call begins that has a whole header; the end of the text if there is none."""
    while (found := text.find(marks.begin, start)) >= 0:
        start = found + len(marks.begin)
        if marks.header.match(text, start):
            return found
    return len(text)
