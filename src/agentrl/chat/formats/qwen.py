"""Qwen and Hermes: JSON objects inside ``<tool_call>``, and programs in ``<code>`` behind the JSON."""

from __future__ import annotations

import re
from dataclasses import replace

from agentrl.chat.formats.base import CUT, Attempt, Draft, Format, attempt_from, bad_arguments, read_blocks
from agentrl.chat.formats.jsonlike import Decoded, NotJson, decode_at, repair_at, skip_blanks
from agentrl.types import CallStatus

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CODE, CODE_END = "<code>", "</code>"
CODE_TOOLS = frozenset({"PythonInterpreter", "execute_code"})
CODE_MISPLACED = f"{CODE} may only follow the JSON of {' or '.join(sorted(CODE_TOOLS))}"

NEXT_CALL = re.compile(r'<tool_call>\s*[{\[]\s*\{?\s*["\']')
"""An opening tag that is not data: inside a JSON string the quote behind it would be escaped."""
NEXT_CALL_BEHIND_PROGRAM = re.compile(r'(?:^[ \t]*|</tool_call>\s*)(<tool_call>)\s*[{\[]\s*\{?\s*"name"', re.MULTILINE)
PROGRAM_END = re.compile(r"</code>\s*</tool_call>")
SEPARATORS = re.compile(r"[\s,;]*")
EXTRA_BRACE = re.compile(r"\}\s*(?:(?=</tool_call>|<tool_call>)|\Z)")


def parse(text: str, draft: Draft) -> None:
    read_blocks(text, OPEN, read_block, draft)


def read_block(text: str, opening: int, draft: Draft) -> int:
    """Read the block whose tag stands at ``opening``; return where the text goes on."""
    start = skip_blanks(text, opening + len(OPEN))
    if text[start : start + 1] in ("{", "["):
        return read_values(text, opening, start, draft)
    if text.startswith(CODE, start):
        return read_broken(text, opening, "a program needs the JSON with the tool's name before it", draft)
    if start == len(text) and not draft.context.finished:
        draft.break_off(CUT, text[opening:])
        return len(text)
    if is_mention(text, opening):
        draft.mention(OPEN)
        return opening + len(OPEN)
    return read_broken(text, opening, f"{OPEN} must be followed by a JSON object", draft)


def is_mention(text: str, opening: int) -> bool:
    """A tag in the middle of a sentence, or one that nothing closes, is prose."""
    line = text[text.rfind("\n", 0, opening) + 1 : opening]
    return bool(line.strip()) or CLOSE not in text[opening : block_limit(text, opening)]


def block_limit(text: str, opening: int) -> int:
    """Where the next call begins, whatever this block holds."""
    following = NEXT_CALL.search(text, opening + len(OPEN))
    return following.start() if following else len(text)


def read_values(text: str, opening: int, start: int, draft: Draft) -> int:
    """Read JSON values up to the closing tag; each is a call, or a list of calls."""
    attempts: list[Attempt] = []
    last = position = start
    while text[position : position + 1] in ("{", "["):
        last = position
        try:
            decoded = decode_value(text, opening, position, draft)
        except NotJson as problem:
            add_all(draft, attempts)
            if problem.truncated and not draft.context.finished:
                draft.break_off(CUT, text[position:])
                return len(text)
            return read_broken(text, opening, str(problem), draft)
        attempts += attempts_from(decoded, text[position : decoded.end])
        position = skip_separators(text, decoded.end)
        if extra := EXTRA_BRACE.match(text, position):
            attempts[-1:] = [replace(attempt, repaired=True) for attempt in attempts[-1:]]
            position = extra.end()
    if text.startswith(CODE, position):
        return read_program(text, opening, position, attempts, draft)
    return close_block(text, opening, last, position, attempts, draft)


def decode_value(text: str, opening: int, position: int, draft: Draft) -> Decoded:
    """Strictly first. A repair may only use what stands before the end of the block."""
    try:
        return decode_at(text, position)
    except NotJson as problem:
        if problem.truncated and not draft.context.finished:
            raise
        limit = block_limit(text, opening)
        end = text.rfind(CLOSE, opening, limit)
        try:
            return repair_at(text, position, end if end >= 0 else limit)
        except NotJson:
            raise problem from None


def attempts_from(decoded: Decoded, raw: str) -> list[Attempt]:
    values = decoded.value if isinstance(decoded.value, list) else [decoded.value]
    return [attempt_from(value, raw, repaired=decoded.repaired) for value in values]


def close_block(text: str, opening: int, last: int, position: int, attempts: list[Attempt], draft: Draft) -> int:
    """The values ended at ``position``; what stands there decides whether the last one is believed."""
    if text.startswith(CLOSE, position):
        add_all(draft, attempts)
        return position + len(CLOSE)
    if text.startswith(OPEN, position) or (position == len(text) and draft.context.finished):
        add_all(draft, attempts)
        return position
    add_all(draft, attempts[:-1])
    if position == len(text) or (not draft.context.finished and CLOSE.startswith(text[position:])):
        draft.break_off(CUT, text[last:], attempts[-1].name if attempts else "")
        return len(text)
    found = text[position : position + 20]
    return read_broken(text, opening, f"the JSON is followed by {found!r} instead of {CLOSE}", draft)


def read_program(text: str, opening: int, code: int, attempts: list[Attempt], draft: Draft) -> int:
    """The program ends at the last ``</code></tool_call>`` before the next call or the end of the text."""
    add_all(draft, attempts[:-1])
    if not attempts or attempts[-1].name not in CODE_TOOLS:
        return read_broken(text, opening, CODE_MISPLACED, draft)
    first = PROGRAM_END.search(text, code)
    if first is None:
        return read_unclosed_program(text, opening, code, attempts[-1], draft)
    following = NEXT_CALL_BEHIND_PROGRAM.search(text, first.start() + len(CODE_END))
    limit = following.start(1) if following else len(text)
    *_, end = PROGRAM_END.finditer(text, first.start(), limit)
    draft.add(with_program(attempts[-1], text[code + len(CODE) : end.start()], text[opening : end.end()]))
    return end.end()


def read_unclosed_program(text: str, opening: int, code: int, attempt: Attempt, draft: Draft) -> int:
    """Only the closing tag of the call may be missing, and only if the model stopped by itself."""
    body = text[code + len(CODE) :].rstrip()
    if draft.context.finished and body.endswith(CODE_END):
        draft.add(with_program(attempt, body[: -len(CODE_END)], text[opening:]))
        return len(text)
    reason = f"the program is not closed by {CODE_END}{CLOSE}" if draft.context.finished else CUT
    draft.break_off(reason, text[opening:], attempt.name)
    return len(text)


def with_program(attempt: Attempt, program: str, raw: str) -> Attempt:
    """``attempt`` with the program as argument ``code``, without the newline at either end."""
    if attempt.arguments is None:
        return attempt
    if attempt.arguments.get("code"):
        return bad_arguments(attempt.name, "the program is given twice: in the JSON and between <code> tags", raw)
    code = program.removeprefix("\n").removesuffix("\n")
    return replace(attempt, arguments={**attempt.arguments, "code": code})


def read_broken(text: str, opening: int, reason: str, draft: Draft) -> int:
    """Report the block, which reaches to its last closing tag before the next call."""
    limit = block_limit(text, opening)
    close = text.rfind(CLOSE, opening, limit)
    end = close + len(CLOSE) if close >= 0 else limit
    draft.break_off(reason, text[opening:end])
    return end


def skip_separators(text: str, start: int) -> int:
    match = SEPARATORS.match(text, start)
    return match.end() if match else start


def add_all(draft: Draft, attempts: list[Attempt]) -> None:
    for attempt in attempts:
        draft.add(attempt if attempt.status is not CallStatus.OK else replace(attempt, raw=""))


FORMAT = Format(parse=parse)
