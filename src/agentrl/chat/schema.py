"""Arguments against a tool's JSON schema, with a message a model can act on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

LOG = logging.getLogger(__name__)
MAX_COMPLAINTS = 3
MAX_SHOWN = 200
"""Characters of one complaint: jsonschema repeats the value, which may be a whole file."""


def complaint(arguments: Any, schema: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, one sentence per problem; empty when nothing is.

    A schema that cannot be used (invalid, or pointing to another document, which is never fetched) checks nothing and
    is logged: it is the tool server's mistake, not the model's.
    """
    from jsonschema.exceptions import SchemaError, UndefinedTypeCheck, UnknownType
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if not schema:
        return ""
    validator = validator_for(schema)
    try:
        validator.check_schema(dict(schema))
        errors = sorted(
            validator(schema, registry=Registry()).iter_errors(arguments), key=lambda e: list(map(str, e.path))
        )
    except (SchemaError, UnknownType, UndefinedTypeCheck, Unresolvable, RecursionError) as unusable:
        LOG.warning("arguments are not checked, the tool's schema cannot be used: %s", str(unusable)[:MAX_SHOWN])
        return ""
    texts = [f"{place(error.path)}: {shortened(error.message)}" for error in errors[:MAX_COMPLAINTS]]
    if len(errors) > MAX_COMPLAINTS:
        texts.append(f"{len(errors) - MAX_COMPLAINTS} more")
    return "; ".join(texts)


def place(path: Any) -> str:
    return ".".join(["arguments", *map(str, path)])


def shortened(message: str) -> str:
    return message if len(message) <= MAX_SHOWN else f"{message[: MAX_SHOWN // 2]} ... {message[-MAX_SHOWN // 2 :]}"
