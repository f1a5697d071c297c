"""Arguments against a tool's JSON schema, with a message a model can act on."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

LOG = logging.getLogger(__name__)
MAX_COMPLAINTS = 3
MAX_SHOWN = 200
"""Characters of one complaint: jsonschema repeats the value, which may be a whole file."""


def complaint(arguments: Any, schema: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, one sentence per problem; empty when nothing is.

    A schema that cannot be used (invalid, or pointing to another document, which is never fetched) checks nothing and
    is logged: it is the tool server's mistake, not the model's.
    """
    from jsonschema.exceptions import UndefinedTypeCheck, UnknownType
    from referencing.exceptions import Unresolvable

    validator = checked_validator(json.dumps(schema, default=dict)) if schema else None
    if validator is None:
        return ""
    try:
        errors = sorted(validator.iter_errors(arguments), key=lambda e: list(map(str, e.path)))
    except (UnknownType, UndefinedTypeCheck, Unresolvable, RecursionError) as unusable:
        note_unusable(unusable)
        return ""
    texts = [f"{place(error.path)}: {shortened(error.message)}" for error in errors[:MAX_COMPLAINTS]]
    if len(errors) > MAX_COMPLAINTS:
        texts.append(f"{len(errors) - MAX_COMPLAINTS} more")
    return "; ".join(texts)


@lru_cache(maxsize=4096)
def checked_validator(schema_text: str) -> Validator | None:
    """Checking a schema costs more than checking arguments, so each is checked once; None when it cannot be used."""
    from jsonschema.exceptions import SchemaError, UndefinedTypeCheck, UnknownType
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    schema = json.loads(schema_text)
    validator = validator_for(schema)
    try:
        validator.check_schema(schema)
    except (SchemaError, UnknownType, UndefinedTypeCheck, Unresolvable, RecursionError) as unusable:
        note_unusable(unusable)
        return None
    return validator(schema, registry=Registry())


def note_unusable(problem: Exception) -> None:
    LOG.warning("arguments are not checked, the tool's schema cannot be used: %s", str(problem)[:MAX_SHOWN])


def place(path: Any) -> str:
    return ".".join(["arguments", *map(str, path)])


def shortened(message: str) -> str:
    return message if len(message) <= MAX_SHOWN else f"{message[: MAX_SHOWN // 2]} ... {message[-MAX_SHOWN // 2 :]}"
