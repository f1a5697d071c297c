"""Readers of text, JSON and comma-separated values."""

from __future__ import annotations

import csv
import json

from agentdock.reading.charset import decoded
from agentdock.reading.document import Document, Source


def read_text(source: Source) -> Document:
    return Document(kind="text", text=decoded(source.body, source.content_type))


def read_json(source: Source) -> Document:
    """JSON over several lines, so that it can be paged."""
    text = decoded(source.body, source.content_type)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Document(kind="json", text=text, notes=(f"not valid JSON ({error}); shown as it is",))
    return Document(kind="json", text=json.dumps(value, ensure_ascii=False, indent=2))


def read_csv(source: Source) -> Document:
    """The file as it is, and its size as a table."""
    text = decoded(source.body, source.content_type)
    try:
        dialect = csv.Sniffer().sniff(text[:8192], delimiters=",;\t|")
        widths = [len(row) for row in csv.reader(text.splitlines(), dialect)]
    except csv.Error:
        return Document(kind="csv", text=text, notes=("no column separator was recognised; shown as it is",))
    return Document(kind="csv", text=text, notes=(f"{len(widths)} rows, {max(widths, default=0)} columns",))
