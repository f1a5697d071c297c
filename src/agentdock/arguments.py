"""Arguments against a tool's schema: harmless slips of a model are put right, the rest is named so that it can act."""

from __future__ import annotations

import difflib
import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

logger = logging.getLogger(__name__)

MODES = ("coerce", "check", "pass")
MAX_COMPLAINTS = 3
MAX_SHOWN = 200
MAX_DEPTH = 20
NUMBER_CHARS = frozenset("0123456789+-.eE")
BOOLEANS = {"true": True, "false": False}
UNCHANGED = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Arguments as the tool gets them, ``notes`` on what was changed, and a ``complaint`` if they do not fit."""

    arguments: dict[str, Any]
    notes: tuple[str, ...] = ()
    complaint: str = ""


def fit(arguments: Mapping[str, Any], schema: Mapping[str, Any], *, mode: str = "coerce") -> Fitted:
    """Fit ``arguments`` to ``schema``; ``mode`` is one of ``MODES``.

    Only a value whose type the schema does not allow is changed: a single value becomes a list of one, and a text
    that holds JSON, a number or a boolean becomes what it holds. A schema that cannot be used checks nothing and is
    logged, because that is the mistake of the server. References to other documents are never fetched.
    """
    given = dict(arguments)
    validator = None if mode == "pass" or not schema else _validator(json.dumps(schema, default=dict))
    if validator is None or _is_valid(validator, given):
        return Fitted(arguments=given)
    notes: list[str] = []
    if mode == "coerce":
        given = _coerced(given, schema, schema, "", notes)
    return Fitted(arguments=given, notes=tuple(notes), complaint=_complaint(validator, given))


def _coerced(value: Any, schema: Any, root: Mapping[str, Any], place: str, notes: list[str], depth: int = 0) -> Any:
    """``value`` with the slips inside it put right; each change is described in ``notes``."""
    schema = _resolved(schema, root)
    if depth > MAX_DEPTH or not isinstance(schema, Mapping):
        return value
    changed = _of_allowed_type(value, _types(schema, root))
    if changed is not UNCHANGED:
        notes.append(f"{place}: {_shown(value)} was read as {_shown(changed)}")
        value = changed
    inside = _branch(value, schema, root)
    if isinstance(value, dict):
        fields = inside.get("properties", {})
        return {
            key: _coerced(item, fields[key], root, f"{place}.{key}".lstrip("."), notes, depth + 1)
            if key in fields
            else item
            for key, item in value.items()
        }
    if isinstance(value, list) and "items" in inside:
        return [
            _coerced(item, inside["items"], root, f"{place}[{i}]", notes, depth + 1) for i, item in enumerate(value)
        ]
    return value


def _of_allowed_type(value: Any, types: frozenset[str]) -> Any:
    """``value`` as a type that is allowed, or ``UNCHANGED`` if it is one already or cannot be."""
    if not types or _type_names(value) & types:
        return UNCHANGED
    if isinstance(value, str):
        held = _held(value)
        if held is not UNCHANGED and _type_names(held) & types:
            return held
    if "string" in types and isinstance(value, (int, float)) and not isinstance(value, bool):
        return json.dumps(value)
    if "array" in types and value is not None:
        return [value]
    return UNCHANGED


def _held(text: str) -> Any:
    """What ``text`` writes down, if that is JSON structure, a finite number or a boolean."""
    stripped = text.strip()
    if stripped.lower() in BOOLEANS:
        return BOOLEANS[stripped.lower()]
    if not stripped or (stripped[0] not in "[{" and not set(stripped) <= NUMBER_CHARS):
        return UNCHANGED
    try:
        held = json.loads(stripped)
    except (ValueError, RecursionError):
        return UNCHANGED
    return UNCHANGED if isinstance(held, float) and not math.isfinite(held) else held


def _type_names(value: Any) -> frozenset[str]:
    match value:
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"integer", "number"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list() | tuple():
            return frozenset({"array"})
        case None:
            return frozenset({"null"})
        case _:
            return frozenset({"object"})


def _types(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The types that ``schema`` allows; empty if it does not say."""
    declared = schema.get("type")
    if isinstance(declared, str):
        return frozenset({declared})
    if isinstance(declared, list):
        return frozenset(declared)
    if "properties" in schema:
        return frozenset({"object"})
    found: set[str] = set()
    for branch in _branches(schema, root):
        types = _types(branch, root, depth + 1) if depth < MAX_DEPTH else frozenset[str]()
        if not types:
            return frozenset()
        found |= types
    return frozenset(found)


def _branches(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        resolved = _resolved(branch, root)
        if isinstance(resolved, Mapping):
            yield resolved


def _branch(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The alternative of ``schema`` that speaks of values like ``value``."""
    if "properties" in schema or "items" in schema:
        return schema
    names = _type_names(value)
    return next((branch for branch in _branches(schema, root) if names & _types(branch, root)), schema)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """``schema``, or what its reference inside the same document points to."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for part in reference.removeprefix("#").strip("/").split("/"):
            if part:
                part = part.replace("~1", "/").replace("~0", "~")
                schema = schema.get(part) if isinstance(schema, Mapping) else None
    return None


@lru_cache(maxsize=4096)
def _validator(schema_text: str) -> Validator | None:
    """Checking a schema costs more than checking arguments, so each is checked once; None if it cannot be used."""
    from jsonschema.exceptions import SchemaError, UndefinedTypeCheck, UnknownType
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = json.loads(schema_text)
    kind = validator_for(schema)
    try:
        kind.check_schema(schema)
    except (SchemaError, UnknownType, UndefinedTypeCheck, Unresolvable, RecursionError) as unusable:
        _note_unusable(unusable)
        return None
    return kind(schema, registry=Registry())


def _errors(validator: Validator, arguments: dict[str, Any]) -> list[ValidationError]:
    from jsonschema.exceptions import UndefinedTypeCheck, UnknownType
    from referencing.exceptions import Unresolvable

    try:
        return sorted(validator.iter_errors(arguments), key=lambda error: list(map(str, error.path)))
    except (UnknownType, UndefinedTypeCheck, Unresolvable, RecursionError) as unusable:
        _note_unusable(unusable)
        return []


def _is_valid(validator: Validator, arguments: dict[str, Any]) -> bool:
    return not _errors(validator, arguments)


def _note_unusable(problem: Exception) -> None:
    logger.warning("arguments are not checked, the tool's schema cannot be used: %s", str(problem)[:MAX_SHOWN])


def _complaint(validator: Validator, arguments: dict[str, Any]) -> str:
    errors = _errors(validator, arguments)
    texts = list(dict.fromkeys(_sentence(error) for error in errors))
    more = [f"{len(texts) - MAX_COMPLAINTS} more"] if len(texts) > MAX_COMPLAINTS else []
    return "; ".join(texts[:MAX_COMPLAINTS] + more)


def _sentence(error: ValidationError) -> str:
    """One mistake: the field, what is wrong, what was expected."""
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    place = _place(error.absolute_path)
    fields = schema.get("properties", {})
    match error.validator:
        case "required" if isinstance(error.instance, dict):
            absent = [key for key in schema["required"] if key not in error.instance]
            described = ", ".join(f"{key!r}{_expected(fields.get(key))}" for key in absent)
            return f"{place}missing {described}"
        case "additionalProperties" if isinstance(error.instance, dict) and schema.get("additionalProperties") is False:
            unknown = [key for key in error.instance if key not in fields]
            near = [match for key in unknown for match in difflib.get_close_matches(key, fields, 1)]
            hint = f"did you mean {near[0]!r}?" if near else "known are " + (", ".join(fields) or "none")
            return f"{place}unknown {', '.join(map(repr, unknown))}; {hint}"
        case "type":
            return f"{place}{_shown(error.instance)} is not {_named_types(error.validator_value)}"
        case "enum":
            return f"{place}{_shown(error.instance)} is not one of {_shown(error.validator_value)}"
        case _:
            return f"{place}{_shortened(error.message)}"


def _place(path: Any) -> str:
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") + ": " if text else ""


def _expected(schema: Any) -> str:
    types = schema.get("type") if isinstance(schema, Mapping) else None
    return f" ({_named_types(types)})" if types else ""


def _named_types(types: Any) -> str:
    return " or ".join([types] if isinstance(types, str) else map(str, types))


def _shown(value: Any) -> str:
    return _shortened(json.dumps(value, ensure_ascii=False, default=str))


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN // 2]} ... {text[-MAX_SHOWN // 2 :]}"
