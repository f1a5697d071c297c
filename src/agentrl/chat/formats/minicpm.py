"""MiniCPM: calls in Python notation between special tokens, in a code fence or not."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import CUT, Attempt, Draft, Format, malformed, read_blocks
from agentrl.chat.formats.jsonlike import skip_blanks
from agentrl.chat.formats.literals import TOKEN
from agentrl.chat.formats.pythonic import read_call

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
FENCE = re.compile(r"\s*```(?:python|py)?[ \t]*(?=\n|\Z)")
FENCE_END = re.compile(r"\s*```\s*\Z")
SEPARATORS = re.compile(r"[\s;,]*")


def parse(text: str, draft: Draft) -> None:
    read_blocks(text, OPEN, read_block, draft)


def read_block(text: str, opening: int, draft: Draft) -> int:
    start = opening + len(OPEN)
    close = find_close(text, start)
    end = len(text) if close is None else close
    read_calls(text, start, end, closed=close is not None, draft=draft)
    return end if close is None else close + len(CLOSE)


def find_close(text: str, start: int) -> int | None:
    """The end token, those inside strings not counted."""
    position = start
    while position < len(text):
        if text.startswith(CLOSE, position):
            return position
        match = TOKEN.match(text, position)
        if match is None and text[position] in "\"'":
            found = text.find(CLOSE, position)
            return found if found >= 0 else None
        position = match.end() if match else position + 1
    return None


def read_calls(text: str, start: int, end: int, *, closed: bool, draft: Draft) -> None:
    """The calls of one block. If the block was cut by the length limit its last call is not believed."""
    fence = FENCE.match(text, start, end)
    position = skip_blanks(text, fence.end() if fence else start)
    fence_end = FENCE_END.search(text, max(position, end - 16), end)
    limit = fence_end.start() if fence_end else end
    attempts: list[Attempt] = []
    while position < limit:
        if len(attempts) and draft.exhausted:
            return draft.give_up(text[position:end])
        attempt, stop = read_call(text, position, limit)
        attempts.append(attempt)
        draft.add(attempt)
        separators = SEPARATORS.match(text, stop, limit)
        position = separators.end() if separators else stop
    cut = not closed and not draft.context.finished
    if attempts and cut:
        draft.attempts[-1] = malformed(CUT, text[start:end], attempts[-1].name)
    elif not attempts:
        draft.break_off(CUT if cut else "the block holds no call", text[start:end])
    return None


FORMAT = Format(parse=parse, reasoning=("<|thought_start|>", "<|thought_end|>"))
