"""The engine ``local``: BM25 over a corpus in memory, offline; the same query gives the same hits everywhere."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence

from agentdock.searching.bm25 import Index, terms
from agentdock.searching.corpus import Corpus
from agentdock.searching.hits import MAX_TITLE_CHARACTERS, Hit, one_line

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


class LocalEngine:
    """Searches ``corpus``; a snippet is the part of a document that answers best to the query."""

    name = "local"

    def __init__(self, corpus: Corpus, *, snippet_characters: int = 300) -> None:
        self._index = Index(corpus.documents)
        self._snippet_characters = snippet_characters

    async def search(self, query: str, num: int) -> Sequence[Hit]:
        return await asyncio.to_thread(self._search, query, num)

    async def close(self) -> None:
        return None

    def _search(self, query: str, num: int) -> list[Hit]:
        weights = {term: self._index.weight(term) for term in terms(query)}
        return [
            Hit(
                rank=rank,
                title=one_line(document.title, MAX_TITLE_CHARACTERS),
                url=document.url,
                snippet=passage(document.text, weights, limit=self._snippet_characters),
                engine=self.name,
            )
            for rank, document in enumerate(self._index.search(query, num), start=1)
        ]


def passage(text: str, weights: Mapping[str, float], *, limit: int) -> str:
    """The run of sentences of about ``limit`` characters with the most weight of distinct terms; the first if tied."""
    sentences = [sentence for sentence in (part.strip() for part in SENTENCE_END.split(text)) if sentence]
    held = [weights.keys() & set(terms(sentence)) for sentence in sentences]
    best, best_weight = "", -1.0
    for start in range(len(sentences)):
        size, end, found = 0, start, set[str]()
        while end < len(sentences) and (end == start or size + len(sentences[end]) <= limit):
            size += len(sentences[end]) + 1
            found |= held[end]
            end += 1
        weight = sum(weights[term] for term in sorted(found))
        if weight > best_weight + 1e-9:
            best, best_weight = " ".join(sentences[start:end]), weight
    return one_line(best, limit)
