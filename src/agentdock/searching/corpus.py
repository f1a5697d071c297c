"""A corpus of one's own: a JSONL file of rows or a folder of texts, read into documents in a fixed order."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote, urljoin

from agentdock.reading.charset import decoded
from agentdock.reading.html import PageText

HTML = frozenset({".html", ".htm", ".xhtml"})
TEXT = frozenset({".txt", ".md", ".markdown", ".rst"})
HEADING = re.compile(r"#\s+(.+)")


class CorpusProblem(Exception):
    """The corpus cannot be used; the text names file, line and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """``url`` is where the whole text can be read; empty if nowhere."""

    title: str
    text: str
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """``left_out`` are files of the folder that hold no text that is read here."""

    documents: tuple[Document, ...]
    left_out: tuple[str, ...] = ()


def read_corpus(path: Path, *, base_url: str = "") -> Corpus:
    """The documents of a JSONL file or of a folder. A relative URL, as a path in the folder, is joined to ``base_url``.

    Raises ``CorpusProblem``.
    """
    corpus = _read_folder(path) if path.is_dir() else Corpus(documents=tuple(load_corpus(path)))
    if not base_url:
        return corpus
    base = base_url.rstrip("/") + "/"
    joined = (replace(doc, url=urljoin(base, doc.url)) if doc.url else doc for doc in corpus.documents)
    return replace(corpus, documents=tuple(joined))


def load_corpus(path: Path) -> list[Document]:
    """Documents of a JSONL file with ``title``, ``text`` and perhaps ``url`` a line; raise ``CorpusProblem``."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusProblem(f"{path}: cannot be read: {error}") from None
    documents = list(_rows(path, lines))
    if not documents:
        raise CorpusProblem(f"{path}: has no documents; expected one JSON object with title and text a line")
    return documents


def _rows(path: Path, lines: Sequence[str]) -> Iterable[Document]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CorpusProblem(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise CorpusProblem(f"{path}, line {number}: expected an object with a text field 'text'")
        fields = {name: row.get(name, "") for name in ("title", "url")}
        for name, value in fields.items():
            if not isinstance(value, str):
                raise CorpusProblem(f"{path}, line {number}: {name!r} is {type(value).__name__}; expected a text")
        yield Document(title=fields["title"], text=row["text"], url=fields["url"])


def _read_folder(folder: Path) -> Corpus:
    documents: list[Document] = []
    left_out: list[str] = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if path.suffix.lower() not in HTML | TEXT:
            left_out.append(name)
            continue
        try:
            text = decoded(path.read_bytes(), "")
        except OSError as error:
            raise CorpusProblem(f"{path}: cannot be read: {error}") from None
        documents.append(replace(_document(path, text), url=quote(name)))
    if not documents:
        kinds = ", ".join(sorted(HTML | TEXT))
        raise CorpusProblem(f"{folder}: has no documents; expected files that end in {kinds}")
    return Corpus(documents=tuple(documents), left_out=tuple(left_out))


def _files(folder: Path) -> Iterator[Path]:
    """Files by path, so that ties rank alike on every machine. Hidden ones and links are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place) / name
            if not name.startswith(".") and not path.is_symlink():
                yield path


def _document(path: Path, text: str) -> Document:
    if path.suffix.lower() in HTML:
        # Not the main text by trafilatura: the ranking must not depend on which libraries are installed.
        page = PageText("")
        page.feed(text)
        page.close()
        return Document(title=page.title or path.stem, text=page.text)
    heading = HEADING.match(text.lstrip())
    return Document(title=heading[1].strip() if heading else path.stem, text=text)
