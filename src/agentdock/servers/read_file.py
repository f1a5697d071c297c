"""``python -m agentdock.servers.read_file --root FOLDER``: the tool ``read_file`` reads documents below the roots."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentdock.reading.document import Document, ReadProblem, Source
from agentdock.reading.paging import Page, page_of
from agentdock.reading.roots import MAX_FILE_BYTES, Roots, names_in
from agentdock.reading.workers import Readers
from agentdock.servers.serve import Answer, ServedTool, serve

DEFAULT_CHARACTERS = 20_000
MAX_CHARACTERS = 200_000
DEFAULT_TOKENS = 24_000


class FileTool:
    def __init__(self, roots: Roots, readers: Readers, *, max_file_bytes: int, max_tokens: int) -> None:
        self._roots = roots
        self._readers = readers
        self._max_file_bytes = max_file_bytes
        self._max_tokens = max_tokens

    async def read_file(self, arguments: dict[str, Any]) -> Answer:
        try:
            path = await asyncio.to_thread(self._roots.find, arguments["uri"])
            if path.is_dir():
                return Answer(text=f"{self._roots.shown(path) or '.'} is a folder:\n{names_in(path)}")
            body = await asyncio.to_thread(self._roots.bytes_of, path, max_bytes=self._max_file_bytes)
            document = await self._readers.read(Source(body=body, name=path.name))
        except ReadProblem as problem:
            return Answer(text=str(problem), is_error=True)
        page = page_of(
            document.text,
            offset=arguments.get("offset", 0),
            limit=arguments.get("limit", DEFAULT_CHARACTERS),
            max_tokens=self._max_tokens,
        )
        return self._answer(self._roots.shown(path), document, page, arguments.get("purpose", ""))

    def _answer(self, name: str, document: Document, page: Page, purpose: str) -> Answer:
        title = f" ({document.title})" if document.title else ""
        head = f"{name}{title}: {document.kind}" + "".join(f"; {note}" for note in document.notes)
        parts = [head, page.text, page.note] if page.text or page.note else [head]
        structured = {
            "path": name,
            "kind": document.kind,
            "title": document.title,
            "notes": list(document.notes),
            "purpose": purpose,
            "text": page.text,
            "offset": page.offset,
            "total_characters": page.total,
            "next_offset": page.next_offset,
        }
        pictures = (document.picture,) if document.picture else ()
        return Answer(text="\n\n".join(part for part in parts if part), structured=structured, pictures=pictures)

    def as_served(self) -> ServedTool:
        return ServedTool(
            name="read_file",
            description=(
                "Read a file as text: plain text, HTML, JSON, CSV, PDF, Word (docx), Excel (xlsx), PowerPoint (pptx); "
                f"an image is shown. A folder is listed. Relative paths start in: {self._roots}. "
                "Long documents come in parts; go on with offset."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "uri": {"type": "string", "description": "path or file:// URL, for example report.pdf"},
                    "purpose": {"type": "string", "description": "what you want to know from the file"},
                    "offset": {"type": "integer", "minimum": 0, "description": "first character; default 0"},
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_CHARACTERS,
                        "description": f"how many characters; default {DEFAULT_CHARACTERS}",
                    },
                },
                "required": ["uri"],
                "additionalProperties": False,
                "examples": [{"uri": "report.pdf"}, {"uri": "table.xlsx", "purpose": "sales in May", "offset": 20000}],
            },
            run=self.read_file,
            read_only=True,
        )


def build(arguments: Sequence[str] | None) -> tuple[FileTool, Readers]:
    """The tool that the command line asks for; raise ``ValueError`` for roots that are not folders."""
    parser = argparse.ArgumentParser(prog="agentdock.servers.read_file", description=__doc__)
    parser.add_argument("--root", type=Path, action="append", required=True, help="a folder that may be read; repeat")
    parser.add_argument("--max-file-mb", type=int, default=MAX_FILE_BYTES // 1024**2)
    parser.add_argument("--max-tokens", type=int, default=DEFAULT_TOKENS, help="about how many a result may have")
    parser.add_argument("--read-seconds", type=float, default=60.0, help="deadline for reading one document")
    parser.add_argument("--parallel", type=int, default=2, help="documents read at the same time")
    options = parser.parse_args(arguments)
    readers = Readers(parallel=options.parallel, timeout_seconds=options.read_seconds)
    tool = FileTool(
        Roots.of(options.root),
        readers,
        max_file_bytes=options.max_file_mb * 1024**2,
        max_tokens=options.max_tokens,
    )
    return tool, readers


def main() -> None:
    try:
        tool, readers = build(None)
    except ValueError as problem:
        sys.exit(str(problem))
    serve(tool.as_served(), on_end=readers.close)


if __name__ == "__main__":
    main()
