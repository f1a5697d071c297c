"""BM25 over documents in memory (Robertson and Zaragoza 2009, eq. 3.15; k1 = 1.2, b = 0.75)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

from agentdock.searching.corpus import Document

K1 = 1.2
B = 0.75
WORD = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")


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
            weight = self.weight(term)
            for number, times in postings:
                norm = K1 * (1 - B + B * self._lengths[number] / self._mean_length)
                scores[number] = scores.get(number, 0.0) + weight * times * (K1 + 1) / (times + norm)
        best = sorted(scores, key=lambda number: (-scores[number], number))
        return [self._documents[number] for number in best[:limit]]

    def weight(self, term: str) -> float:
        """How much ``term`` tells: the fewer documents hold it, the more."""
        holding = len(self._postings.get(term, []))
        return math.log(1 + (len(self._documents) - holding + 0.5) / (holding + 0.5))


def terms(text: str) -> list[str]:
    """Lower-case words; scripts without spaces give single characters and pairs."""
    found: list[str] = []
    for word in WORD.findall(text.lower()):
        if UNSPACED.search(word):
            found += [*word, *(word[i : i + 2] for i in range(len(word) - 1))]
        else:
            found.append(word)
    return found
