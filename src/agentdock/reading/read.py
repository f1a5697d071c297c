"""``read``: bytes to a ``Document`` by the reader of their kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from agentdock.reading.document import Document, ReadProblem, Source
from agentdock.reading.kinds import kind_of

READERS: dict[str, str] = {
    "text": "agentdock.reading.plain:read_text",
    "json": "agentdock.reading.plain:read_json",
    "csv": "agentdock.reading.plain:read_csv",
    "html": "agentdock.reading.html:read_html",
    "pdf": "agentdock.reading.pdf:read_pdf",
    "docx": "agentdock.reading.office:read_docx",
    "xlsx": "agentdock.reading.office:read_xlsx",
    "pptx": "agentdock.reading.office:read_pptx",
    "image": "agentdock.reading.picture:read_image",
}
MAX_TEXT_CHARACTERS = 5_000_000


def read(source: Source) -> Document:
    """Read in this process; ``Readers`` does it in another one, with a deadline."""
    kind = kind_of(source)
    if kind not in READERS:
        raise ReadProblem(f"this is {kind}, which has no words to read")
    module, _, name = READERS[kind].partition(":")
    reader: Callable[[Source], Document] = getattr(import_module(module), name)
    document = reader(source)
    # Half a surrogate pair, which a damaged file can hold, has no UTF-8 form.
    text = document.text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= MAX_TEXT_CHARACTERS:
        return replace(document, text=text)
    note = f"the text has {len(text)} characters; the first {MAX_TEXT_CHARACTERS} are kept"
    return replace(document, text=text[:MAX_TEXT_CHARACTERS], notes=(*document.notes, note))
