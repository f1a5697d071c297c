"""Literals and keyword calls in Python notation, read by a small parser: nothing is ever evaluated."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from typing import Any

MAX_DEPTH = 64
RAW_STRINGS = json.JSONDecoder(strict=False)
"""Reads strings with raw newlines and tabs in them."""

TOKEN = re.compile(
    r"""(?P<blank>\s+|\\\n|\#[^\n]*)
      | (?P<string>[A-Za-z]{0,2}(?:
            \"\"\"[^"\\]*(?:(?:\\.|\"(?!\"\"))[^"\\]*)*\"\"\"
          | '''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''
          | "[^"\\\n]*(?:\\.[^"\\\n]*)*"
          | '[^'\\\n]*(?:\\.[^'\\\n]*)*'))
      | (?P<number>(?:0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+
          |(?:[0-9][0-9_]*(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9]+)?)(?![\w.]))
      | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
      | (?P<mark>[()\[\]{}:,=*+-])""",
    re.VERBOSE | re.DOTALL,
)
PYTHON_NAMES: dict[str, Any] = {"True": True, "False": False, "None": None}
JSON_NAMES: dict[str, Any] = {**PYTHON_NAMES, "true": True, "false": False, "null": None}
CLOSING = {"(": ")", "[": "]", "{": "}"}
ESCAPE = re.compile(r"\\(?:\r\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|.)", re.DOTALL)
SIMPLE_ESCAPES = {
    "\n": "", "\r\n": "", "\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r",
    "t": "\t", "v": "\v",
}  # fmt: skip


class LiteralError(Exception):
    """The text is no literal; says why. ``syntax`` is False where a complete expression is merely not a literal."""


class Literals:
    """Reads values and calls from ``text[start:end]``; ``position`` is where the next one begins.

    With ``json_strings`` double-quoted strings follow JSON (raw newlines allowed) and JSON's names are known.
    """

    def __init__(self, text: str, start: int, end: int, *, json_strings: bool = False) -> None:
        self.position = start
        self._text = text
        self._end = end
        self._json_strings = json_strings
        self._names = JSON_NAMES if json_strings else PYTHON_NAMES

    def peek(self) -> re.Match[str] | None:
        """The next token; None at the end. Raises ``LiteralError`` where there is none."""
        while self.position < self._end:
            match = TOKEN.match(self._text, self.position, self._end)
            if match is None:
                raise LiteralError(f"unexpected {self._text[self.position : self.position + 12]!r}")
            if match.lastgroup != "blank":
                return match
            self.position = match.end()
        return None

    def starts_with(self, mark: str) -> bool:
        token = self.peek()
        return token is not None and token.group() == mark

    def take(self, mark: str) -> None:
        token = self.peek()
        if token is None or token.group() != mark:
            raise LiteralError(f"expected {mark!r}, found {token.group()[:20]!r}" if token else f"expected {mark!r}")
        self.position = token.end()

    def value(self, depth: int = 0) -> Any:
        """One literal: string, number, boolean, None, list, tuple (as list), dict with string keys."""
        if depth > MAX_DEPTH:
            raise LiteralError(f"values are nested more than {MAX_DEPTH} deep")
        if self._json_strings and self._double_quote_ahead():
            return self._json_string()
        token = self.peek()
        if token is None:
            raise LiteralError("a value is missing at the end")
        text = token.group()
        if token.lastgroup == "string":
            return self._string(token)
        if token.lastgroup == "number":
            self.position = token.end()
            return number(text)
        if token.lastgroup == "name":
            return self._name(token)
        if text in "+-":
            return self._signed(token)
        if text == "{":
            return self._dict(depth)
        if text in "([":
            return self._list(text, depth)
        raise LiteralError(f"expected a value, found {text!r}")

    def keyword_arguments(self) -> dict[str, Any]:
        """``(name=literal, ...)``; raises ``LiteralError`` for anything else."""
        self.take("(")
        arguments: dict[str, Any] = {}
        while not self.starts_with(")"):
            token = self.peek()
            if token is None:
                raise LiteralError("the closing parenthesis is missing")
            if token.lastgroup != "name":
                raise LiteralError("every argument needs a name: write name=value")
            self.position = token.end()
            if not self.starts_with("="):
                raise LiteralError("every argument needs a name: write name=value with a literal value")
            self.take("=")
            if token.group() in arguments:
                raise LiteralError(f"the argument {token.group()} is given twice")
            arguments[token.group()] = self.value()
            if not self.starts_with(")"):
                self.take(",")
        self.take(")")
        return arguments

    def end_of_brackets(self) -> int | None:
        """Where the bracket at ``position`` closes, strings skipped; None if it does not."""
        depth, position = 0, self.position
        while position < self._end:
            match = TOKEN.match(self._text, position, self._end)
            if match is None:
                if self._text[position] in "\"'":
                    return None
                position += 1
                continue
            position = match.end()
            depth += (match.group() in CLOSING) - (match.group() in CLOSING.values())
            if depth == 0 and match.lastgroup == "mark":
                return position
        return None

    def _double_quote_ahead(self) -> bool:
        while self.position < self._end and self._text[self.position].isspace():
            self.position += 1
        return self._text.startswith('"', self.position, self._end)

    def _json_string(self) -> str:
        try:
            value, end = RAW_STRINGS.raw_decode(self._text, self.position)
        except json.JSONDecodeError as error:
            raise LiteralError(f"invalid JSON: {error.msg[0].lower()}{error.msg[1:]}") from None
        if end > self._end:
            raise LiteralError("invalid JSON: unterminated string")
        self.position = end
        return value

    def _string(self, first: re.Match[str]) -> str:
        """A string, or adjacent strings outside JSON: Python joins them."""
        pieces = [string(first.group())]
        self.position = first.end()
        while not self._json_strings and (token := self.peek()) is not None and token.lastgroup == "string":
            pieces.append(string(token.group()))
            self.position = token.end()
        return "".join(pieces)

    def _name(self, token: re.Match[str]) -> Any:
        if token.group() not in self._names:
            raise LiteralError(
                f"{token.group()[:40]} is not a literal; only strings, numbers, True, False, None, lists "
                "and dicts are allowed"
            )
        self.position = token.end()
        return self._names[token.group()]

    def _signed(self, sign: re.Match[str]) -> int | float:
        self.position = sign.end()
        token = self.peek()
        if sign.group() != "-" or token is None or token.lastgroup != "number":
            raise LiteralError(f"{sign.group()!r} may only stand before a number, as a minus sign")
        self.position = token.end()
        return -number(token.group())

    def _list(self, opening: str, depth: int) -> list[Any]:
        self.take(opening)
        closing, values, comma = CLOSING[opening], [], False
        while not self.starts_with(closing):
            values.append(self.value(depth + 1))
            comma = self.starts_with(",")
            if not self.starts_with(closing):
                self.take(",")
        self.take(closing)
        if opening == "(" and len(values) == 1 and not comma:
            return values[0]
        return values

    def _dict(self, depth: int) -> dict[str, Any]:
        self.take("{")
        entries: dict[str, Any] = {}
        while not self.starts_with("}"):
            key = self.value(depth + 1)
            if not isinstance(key, str):
                raise LiteralError("the keys of an object must be strings")
            self.take(":")
            if key in entries:
                raise LiteralError(f"the key {key[:40]!r} is given twice")
            entries[key] = self.value(depth + 1)
            if not self.starts_with("}"):
                self.take(",")
        self.take("}")
        return entries


def number(text: str) -> int | float:
    try:
        if text[:2].lower() in ("0x", "0o", "0b"):
            return int(text, 0)
        value = float(text) if any(letter in text for letter in ".eE") else int(text)
    except ValueError:
        raise LiteralError(f"{text[:40]} is not a number that can be read") from None
    if isinstance(value, float) and math.isinf(value):
        raise LiteralError(f"the number {text[:40]} is too large")
    return value


def string(token: str) -> str:
    """The value of a Python string literal; raises ``LiteralError`` for bytes and f-strings."""
    prefix = token[: min(token.find(quote) for quote in "\"'" if quote in token)]
    if prefix.lower() not in ("", "r", "u"):
        raise LiteralError(f"only plain strings are allowed, not {prefix}'...'")
    quoted = token[len(prefix) :]
    width = 3 if len(quoted) >= 6 and quoted[:3] in ('"""', "'''") else 1
    body = quoted[width:-width]
    return body if prefix.lower() == "r" else joined_halves(ESCAPE.sub(unescape, body))


def joined_halves(text: str) -> str:
    """Models write a character beyond U+FFFF as two escapes, as JSON does."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise LiteralError("a \\u escape is half of a surrogate pair, which is no character") from None


def unescape(match: re.Match[str]) -> str:
    code = match.group()[1:]
    if code in SIMPLE_ESCAPES:
        return SIMPLE_ESCAPES[code]
    try:
        if code[0] in "xuU" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] == "N" and len(code) > 1:
            return unicodedata.lookup(code[2:-1])
        return chr(int(code, 8)) if code[0] in "01234567" else match.group()
    except (ValueError, KeyError, OverflowError):
        raise LiteralError(f"the escape {match.group()[:20]} means no character") from None
