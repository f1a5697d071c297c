"""``calls.jsonl``: one line for each call that came to a tool, with what it was asked in outline, and how it ended."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from agentdock.logs import RotatingFile
from agentdock.stats import CallRecord

CALLS_FILE = "calls.jsonl"
CONTENT = ("shape", "full", "off")
MAX_ITEMS = 20
MAX_DEPTH = 3


class CallLog:
    """Writes to ``file``; ``content``: "shape" tells types and sizes of arguments, "full" the arguments, redacted."""

    def __init__(self, file: RotatingFile, *, content: str, redact: Callable[[str], str]) -> None:
        self._file = file
        self._content = content
        self._redact = redact

    def add(self, record: CallRecord, arguments: Mapping[str, Any], **who: str) -> None:
        if self._content == "off":
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "tool": record.tool,
            **{name: value for name, value in who.items() if value},
            "outcome": record.outcome,
            "seconds": round(record.seconds, 4),
            "queued_seconds": round(record.queued_seconds, 4),
            "arguments": dict(arguments) if self._content == "full" else shape(arguments),
        }
        if record.error:
            line["error"] = record.error
        text = json.dumps(line, ensure_ascii=False, default=repr)
        self._file.write(self._redact(text) + "\n")


def shape(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The outline of a value: what it is and how long, never what it says."""
    if isinstance(value, str):
        return f"text[{len(value)}]"
    if isinstance(value, Mapping):
        if depth == 0 or len(value) > MAX_ITEMS:
            return f"object[{len(value)}]"
        return {str(key): shape(item, depth - 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        kinds = sorted({type(item).__name__ for item in value})
        return f"list[{len(value)}] of {' or '.join(kinds)}" if value else "list[0]"
    return "null" if value is None else type(value).__name__
