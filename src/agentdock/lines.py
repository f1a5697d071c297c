"""Which line of a TOML or JSON file holds which field, so that a mistake can be named with its place."""

from __future__ import annotations

import json
import re

Field = tuple[str, ...]

TOML_WORD = r"""(?:"[^"]*"|'[^']*'|[A-Za-z0-9_-]+)"""
TOML_PATH = rf"{TOML_WORD}(?:\s*\.\s*{TOML_WORD})*"
TOML_HEADER = re.compile(rf"^\s*\[\[?\s*({TOML_PATH})\s*\]\]?\s*(?:#.*)?$")
TOML_KEY = re.compile(rf"^\s*({TOML_PATH})\s*=(.*)$")
TOML_STRING = re.compile(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*')
JSON_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|[{}\[\]]|\n')


def toml_lines(text: str) -> dict[Field, int]:
    """Line of every table and key of a valid TOML text; keys inside inline tables are left to their parent."""
    lines: dict[Field, int] = {}
    table: Field = ()
    depth, closing = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        if closing:
            closing = "" if line.count(closing) % 2 else closing
            continue
        if depth == 0 and (header := TOML_HEADER.match(line)):
            table = _toml_words(header[1])
            for size in range(1, len(table) + 1):
                lines.setdefault(table[:size], number)
            continue
        value = line
        if depth == 0 and (key := TOML_KEY.match(line)):
            lines.setdefault(table + _toml_words(key[1]), number)
            value = key[2]
        closing = next((mark for mark in ('"""', "'''") if value.count(mark) % 2), "")
        if not closing:
            bare = TOML_STRING.sub("", value)
            depth += sum(bare.count(mark) for mark in "[{") - sum(bare.count(mark) for mark in "]}")
    return lines


def json_lines(text: str) -> dict[Field, int]:
    """Line of every key of a valid JSON text; keys inside arrays are left to their parent."""
    lines: dict[Field, int] = {}
    path: list[str] = []
    key, number, arrays = "", 1, 0
    for token in JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark == "\n":
            number += 1
        elif token[2] is not None:
            key = json.loads(token[1])
            if not arrays:
                lines.setdefault((*path[1:], key), number)
            number += token[2].count("\n")
        elif mark == "{" and not arrays:
            path.append(key)
        elif mark == "}" and not arrays:
            path.pop()
        elif mark in "[]":
            arrays += 1 if mark == "[" else -1
    return lines


def nearest(lines: dict[Field, int], field: Field) -> int | None:
    """The line of ``field`` or of the closest table around it; None if not even that is known."""
    while field:
        if field in lines:
            return lines[field]
        field = field[:-1]
    return None


def _toml_words(path: str) -> Field:
    return tuple(word.strip("\"'") for word in re.findall(TOML_WORD, path))
