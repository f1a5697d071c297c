"""Qwen3-Coder: ``<function=NAME>`` with ``<parameter=NAME>`` blocks. It looks like XML and is not: values are raw."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from agentrl.chat.formats.base import CUT, Attempt, Draft, Format, bad_arguments, malformed
from agentrl.chat.formats.jsonlike import NotJson, decode, repair_at, skip_blanks

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION_END, PARAMETER_END = "</function>", "</parameter>"
FUNCTION = re.compile(r"(?:<tool_call>\s*)?<function=([^<>\n]*)>(?=\s*(?:<parameter=|</function>|\Z))")
PARAMETER = re.compile(r"\s*<parameter=([^<>\n]*)>")
VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>|\Z))")
PARAMETER_LINE = re.compile(r"^[ \t]*<parameter=[^<>\n]*>[ \t]*$", re.MULTILINE)
NEXT_CALL = re.compile(r"<tool_call>\s*<function=[^<>\n]*>\s*(?:<parameter=|</function>)")
INTEGER = re.compile(r"[+-]?[0-9]+\Z")
BOOLEANS = {"true": True, "false": False}
MAX_SCHEMA_DEPTH = 8
JSON_TYPES: dict[type, str] = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object", type(None): "null",
}  # fmt: skip
PARTS = {"properties": "object", "items": "array"}


class Unconvertible(Exception):
    """The value is not of the declared type."""


def parse(text: str, draft: Draft) -> None:
    position = 0
    while (start := next_start(text, position)) >= 0:
        draft.say(text[position:start])
        if draft.exhausted:
            return draft.give_up(text[start:])
        position = read_block(text, start, draft)
    return draft.say(text[position:])


def next_start(text: str, position: int) -> int:
    """The next opening tag, or a function whose opening tag is missing."""
    function = FUNCTION.search(text, position)
    tag = text.find(OPEN, position, function.start() if function else len(text))
    return tag if tag >= 0 else (function.start() if function else -1)


def read_block(text: str, start: int, draft: Draft) -> int:
    function = FUNCTION.match(text, start)
    if function is None:
        return read_other(text, start, draft)
    name = function[1].strip()
    position, values = function.end(), {}
    while parameter := PARAMETER.match(text, position):
        key, begin = parameter[1].strip(), parameter.end()
        end = VALUE_END.search(text, begin)
        if end is None:
            return read_broken(text, start, f"the parameter {key} is not closed by {PARAMETER_END}", draft, name)
        value = text[begin : end.start()]
        if PARAMETER_LINE.search(value):
            return read_broken(
                text, start, f"the parameter {key} is not closed before the next one begins", draft, name
            )
        if key in values:
            return read_broken(text, start, f"the parameter {key} is given twice", draft, name)
        values[key] = value.removeprefix("\n").removesuffix("\n") if value != "\n" else ""
        position = end.end()
    return close_block(text, start, position, name, values, draft)


def close_block(text: str, start: int, position: int, name: str, values: dict[str, str], draft: Draft) -> int:
    position = skip_blanks(text, position)
    if not text.startswith(FUNCTION_END, position):
        return read_broken(text, start, f"the call is not closed by {FUNCTION_END}", draft, name)
    position = skip_blanks(text, position + len(FUNCTION_END))
    if text.startswith(CLOSE, position):
        position += len(CLOSE)
    elif not draft.context.finished and CLOSE.startswith(text[position:][: len(CLOSE)]):
        draft.break_off(CUT, text[start:], name)
        return len(text)
    draft.add(attempt_from(name, values, draft.context.tools.get(name) or {}, text[start:position]))
    return position


def read_other(text: str, start: int, draft: Draft) -> int:
    """An opening tag without a function: a call if it is closed or cut, otherwise prose."""
    begin = start + len(OPEN)
    limit = next_call(text, begin)
    line = text[text.rfind("\n", 0, start) + 1 : start]
    cut = not draft.context.finished and not text[begin:].lstrip().removeprefix("<function=").strip(
        "abcdefghijklmnopqrstuvwxyz_<="
    )
    if not cut and (line.strip() or text.find(CLOSE, begin, limit) < 0):
        draft.mention(OPEN)
        return begin
    return read_broken(text, start, "the call must be written as <function=NAME> with <parameter=NAME> blocks", draft)


def read_broken(text: str, start: int, reason: str, draft: Draft, name: str = "") -> int:
    """Report the call, which reaches to its last closing tag before the next call."""
    limit = next_call(text, start + 1)
    close = text.rfind(CLOSE, start, limit)
    end = close + len(CLOSE) if close >= 0 else limit
    cut = close < 0 and end == len(text) and not draft.context.finished
    draft.break_off(CUT if cut else reason, text[start:end], name)
    return end


def next_call(text: str, start: int) -> int:
    following = NEXT_CALL.search(text, start)
    return following.start() if following else len(text)


def attempt_from(name: str, values: dict[str, str], schema: Mapping[str, Any], raw: str) -> Attempt:
    """Convert the values to their declared types; an empty value that is no string was not given."""
    if not name:
        return malformed("the call has no name; write <function=NAME>", raw)
    properties = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for key, text in values.items():
        types = declared_types(properties.get(key), schema)
        if not types or "string" in types:
            arguments[key] = text
        elif text.strip():
            try:
                arguments[key] = converted(text.strip(), types)
            except Unconvertible as problem:
                return bad_arguments(name, f"arguments.{key}: {problem}", raw)
    return Attempt(name=name, arguments=arguments)


def declared_types(schema: Any, root: Mapping[str, Any], depth: int = 0) -> set[str]:
    """Type names a property allows, references inside ``root`` followed; empty when it declares none."""
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return set()
    types = schema.get("type")
    found: set[str] = {types} if isinstance(types, str) else set(types or ())
    for key in ("anyOf", "oneOf", "allOf"):
        for choice in schema.get(key) or ():
            found |= declared_types(choice, root, depth + 1)
    if "$ref" in schema:
        found |= declared_types(referred(schema["$ref"], root), root, depth + 1)
    return found or implied_types(schema)


def referred(reference: Any, root: Mapping[str, Any]) -> Any:
    """What ``#/a/b`` points to in ``root``; None for anything else."""
    place: Any = root
    for part in str(reference).removeprefix("#/").split("/"):
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place


def implied_types(schema: Mapping[str, Any]) -> set[str]:
    """The types of a property's allowed values, or of what it says about its parts, where it names no type."""
    values = [schema["const"]] if "const" in schema else schema.get("enum") or ()
    found = {JSON_TYPES[type(value)] for value in values}
    return found | {name for key, name in PARTS.items() if key in schema}


def converted(text: str, types: set[str]) -> Any:
    """``text`` as the first of ``types`` it can be; raises ``Unconvertible``."""
    if "null" in types and text in ("null", "None"):
        return None
    if "boolean" in types and text.lower() in BOOLEANS:
        return BOOLEANS[text.lower()]
    if types & {"integer", "number"} and (number := as_number(text, types)) is not None:
        return number
    if types & {"object", "array"}:
        value = as_json(text)
        if isinstance(value, dict if "array" not in types else list if "object" not in types else (dict, list)):
            return value
    wanted = " or ".join(sorted(types))
    raise Unconvertible(f"{text[:60]!r} is not of type {wanted}")


def as_number(text: str, types: set[str]) -> int | float | None:
    try:
        if INTEGER.match(text):
            return int(text)
        value = decode(text) if "number" in types else None
    except (ValueError, NotJson):
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def as_json(text: str) -> Any:
    try:
        return decode(text)
    except NotJson:
        pass
    try:
        repaired = repair_at(text, 0, len(text))
    except NotJson:
        return None
    return repaired.value if not text[repaired.end :].strip() else None


FORMAT = Format(parse=parse)
