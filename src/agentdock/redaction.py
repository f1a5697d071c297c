"""Takes the secrets of a server out of what is logged, shown and raised.

Secret is what a configuration brings in through ``${NAME}``, every header, and literals that are named or look like
keys. What a variable of the system says of a user or a path is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from agentdock.calls import CallOutcome
from agentdock.spec import REFERENCE, ServerSpec

MIN_CHARS = 4
PUBLIC = frozenset(
    "HOME HOSTNAME LANG LANGUAGE LC_ALL LOGNAME PATH PWD PYTHONPATH SHELL TEMP TERM TMP TMPDIR TZ USER".split()
)
SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth|cookie|session", re.IGNORECASE)
SECRET_LOOK = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[^\s/\\:]{20,}")


class Redactor:
    """Replaces each secret by its name in brackets. ``secrets`` maps values to names."""

    def __init__(self, secrets: Mapping[str, str] | None = None) -> None:
        parts = {part: name for value, name in (secrets or {}).items() for part in (value, *value.splitlines())}
        self._secrets = {part: name for part, name in parts.items() if len(part) >= MIN_CHARS}
        longest_first = sorted(self._secrets, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.longest = len(longest_first[0]) if longest_first else 0

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: f"[redacted {self._secrets[match[0]]}]", text)


def secrets_of(specs: Iterable[ServerSpec], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Value -> name of all secrets of ``specs``, with references resolved in ``environ``."""
    values = os.environ if environ is None else environ
    found: dict[str, str] = {}
    for spec in specs:
        headers = dict(spec.remote.headers) if spec.remote else {}
        texts = [*spec.args, spec.remote.url if spec.remote else "", *spec.env.values(), *headers.values()]
        for match in (match for text in texts for match in REFERENCE.finditer(text)):
            if match[1] not in PUBLIC and values.get(match[1]):
                found[values[match[1]]] = match[1]
        for name, text in (*spec.env.items(), *headers.items()):
            literal = REFERENCE.sub("", text)
            if literal == text and (name in headers or SECRET_NAME.search(name) or SECRET_LOOK.fullmatch(text)):
                found.setdefault(text, name)
                if name in headers:
                    found.setdefault(text.rpartition(" ")[2], name)
    return found


def without_secrets(outcome: CallOutcome, redact: Redactor) -> CallOutcome:
    """The same outcome with the texts redacted, also those within what is structured."""
    content = tuple(
        {**block, "text": redact(block["text"])} if block.get("type") == "text" else block for block in outcome.content
    )
    structured, meta = _redacted(outcome.structured, redact), _redacted(outcome.meta, redact)
    return replace(outcome, text=redact(outcome.text), content=content, structured=structured, meta=meta)


def _redacted(value: Any, redact: Redactor) -> Any:
    match value:
        case str():
            return redact(value)
        case Mapping():
            return {key: _redacted(part, redact) for key, part in value.items()}
        case list():
            return [_redacted(part, redact) for part in value]
        case _:
            return value
