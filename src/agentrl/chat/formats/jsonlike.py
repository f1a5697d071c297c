"""JSON inside a model's reply: a strict decoder first, then repairs that have only one reading."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from agentrl.chat.formats.literals import LiteralError, Literals

BLANKS = re.compile(r"\s*")
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)


class NotJson(Exception):
    """``truncated``: the text ended inside the value, which says nothing against what was written so far."""

    def __init__(self, reason: str, *, truncated: bool = False) -> None:
        super().__init__(reason)
        self.truncated = truncated


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    value: Any
    end: int
    repaired: bool = False


def refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Two values for one key have two readings, so neither is taken."""
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"the key {key[:40]!r} is given twice")
        entries[key] = value
    return entries


DECODER = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite, object_pairs_hook=without_repeats)


def skip_blanks(text: str, start: int) -> int:
    match = BLANKS.match(text, start)
    return match.end() if match else start


def decode(text: str) -> Any:
    """The value of a text that is one JSON value; raises ``NotJson``."""
    decoded = decode_at(text, skip_blanks(text, 0))
    if skip_blanks(text, decoded.end) != len(text):
        raise NotJson("there is text after the JSON value")
    return decoded.value


def decode_at(text: str, start: int) -> Decoded:
    """The JSON value that begins at ``start``, by the strict decoder; raises ``NotJson``."""
    try:
        value, end = DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise NotJson(describe(error, start), truncated=is_truncated(error, text)) from None
    except ValueError as error:
        raise NotJson(str(error)) from None
    except RecursionError:
        raise NotJson("the JSON is nested too deeply") from None
    refuse_half_characters(value, text, start, end)
    return Decoded(value=value, end=end)


def repair_at(text: str, start: int, end: int) -> Decoded:
    """The value at ``start``, reading trailing commas, raw newlines and Python literals; raises ``NotJson``."""
    literals = Literals(text, start, end, json_strings=True)
    try:
        value = literals.value()
    except LiteralError as error:
        raise NotJson(str(error)) from None
    refuse_half_characters(value, text, start, literals.position)
    return Decoded(value=value, end=literals.position, repaired=True)


def refuse_half_characters(value: Any, text: str, start: int, end: int) -> None:
    """JSON can name half of a surrogate pair, which is no character and cannot be sent to a tool."""
    if not HALF_CHARACTER.search(text, start, end):
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise NotJson("a \\u escape in it is half of a surrogate pair, which is no character") from None
    except RecursionError:
        raise NotJson("the JSON is nested too deeply") from None


def end_of_balanced(text: str, start: int) -> int | None:
    """Where the bracket at ``start`` closes, brackets inside strings not counted; None if it does not."""
    depth = 0
    for token in TOKENS.finditer(text, start):
        if token.group() in "{[":
            depth += 1
        elif token.group() in "}]":
            depth -= 1
            if depth == 0:
                return token.end()
        elif token.group() == '"':
            return None
    return None


def describe(error: json.JSONDecodeError, start: int) -> str:
    found = error.doc[error.pos : error.pos + 20]
    where = f"at character {error.pos - start + 1} of the JSON"
    return f"invalid JSON: {error.msg[0].lower()}{error.msg[1:]} {where}" + (f", before {found!r}" if found else "")


def is_truncated(error: json.JSONDecodeError, text: str) -> bool:
    return error.msg.startswith("Unterminated string") or not text[error.pos :].strip()
