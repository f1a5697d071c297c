"""BM25 over a small corpus in memory (Robertson and Zaragoza 2009, eq. 3.15; k1 = 1.2, b = 0.75)."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

K1 = 1.2
B = 0.75
WORD = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


class CorpusProblem(Exception):
    """The corpus file cannot be used; the text names file, line and what was expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    title: str
    text: str


class Index:
    """Term statistics of ``documents``; titles count twice."""

    def __init__(self, documents: Sequence[Document]) -> None:
        self._documents = documents
        counts = [Counter(terms(f"{doc.title} {doc.title} {doc.text}")) for doc in documents]
        self._lengths = [sum(count.values()) for count in counts]
        self._mean_length = sum(self._lengths) / max(len(documents), 1)
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for term, times in count.items():
                self._postings.setdefault(term, []).append((number, times))

    def search(self, query: str, limit: int) -> list[Document]:
        """The ``limit`` best documents that share a term with ``query``; ties in corpus order."""
        scores: dict[int, float] = {}
        for term in dict.fromkeys(terms(query)):
            postings = self._postings.get(term, [])
            weight = math.log(1 + (len(self._documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, times in postings:
                norm = K1 * (1 - B + B * self._lengths[number] / self._mean_length)
                scores[number] = scores.get(number, 0.0) + weight * times * (K1 + 1) / (times + norm)
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._documents[number] for number in best[:limit]]


def terms(text: str) -> list[str]:
    """Lower-case words; scripts without spaces give single characters and pairs."""
    found: list[str] = []
    for word in WORD.findall(text.lower()):
        if UNSPACED.search(word):
            found += [*word, *(word[i : i + 2] for i in range(len(word) - 1))]
        else:
            found.append(word)
    return found


def load_corpus(path: Path) -> list[Document]:
    """Documents of a JSONL file with ``title`` and ``text`` a line; raise ``CorpusProblem``."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusProblem(f"{path}: cannot be read: {error}") from None
    documents = list(_documents(path, lines))
    if not documents:
        raise CorpusProblem(f"{path}: has no documents; expected one JSON object with title and text a line")
    return documents


def _documents(path: Path, lines: Sequence[str]) -> Iterable[Document]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CorpusProblem(f"{path}, line {number}: not valid JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("text"), str):
            raise CorpusProblem(f"{path}, line {number}: expected an object with a text field 'text'")
        title = row.get("title", "")
        if not isinstance(title, str):
            raise CorpusProblem(f"{path}, line {number}: 'title' is {type(title).__name__}; expected a text")
        yield Document(title=title, text=row["text"])
