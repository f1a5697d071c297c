"""Scorers that need no model and no worker: exact, contains, numeric, f1. All are total functions of two texts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from agentrl.errors import ScoringError
from agentrl.scoring.math_answer import Unreadable, read_answer

NUMBER_IN_TEXT = re.compile(r"(?<![\w.])[-+−]?[$€£]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?%?(?![\w])")
WORDS = re.compile(r"[぀-ヿ㐀-䶿一-鿿가-힯]|[^\W_]+")
MAX_WORDS = 50_000


def exact(answer: str, truth: str) -> float:
    """Equal after Unicode form, case, runs of blanks, surrounding quotes and one full stop are set aside."""
    return float(folded(answer) == folded(truth))


def contains(answer: str, truth: str) -> float:
    """The truth stands in the answer as whole words: ``0`` is not in ``10``."""
    pattern = rf"(?<!\w){re.escape(folded(truth))}(?!\w)"
    return float(re.search(pattern, folded(answer)) is not None)


def numeric(answer: str, truth: str, config: Mapping[str, Any]) -> float:
    """The same number: integers exactly, others within ``relative_tolerance`` (1e-6) or ``absolute_tolerance`` (0).

    The answer may be a sentence with exactly one number in it.
    """
    wanted = number_of(truth)
    if wanted is None:
        raise ScoringError(f"the scorer numeric needs a number as answer of the task, got {truth!r:.100}")
    given = number_of(answer)
    if given is None or given == wanted:
        return float(given is not None)
    if given.denominator == wanted.denominator == 1:
        return 0.0
    relative = Fraction(config.get("relative_tolerance", 1e-6))
    allowed = max(relative * max(abs(given), abs(wanted)), Fraction(config.get("absolute_tolerance", 0)))
    return float(abs(given - wanted) <= allowed)


def number_of(text: str) -> Fraction | None:
    """The number a text is, or the only one in it."""
    if (value := whole_number(text)) is not None:
        return value
    found = [match[0] for match in NUMBER_IN_TEXT.finditer(text) if any(c.isdigit() for c in match[0])]
    return whole_number(found[0]) if len(found) == 1 else None


def whole_number(text: str) -> Fraction | None:
    try:
        answer = read_answer(text)
    except Unreadable:
        return None
    while answer.kind in ("assigned", "quantity"):
        answer = answer.items[0]
    return answer.number if isinstance(answer.number, Fraction) else None


def f1(answer: str, truth: str) -> dict[str, float]:
    """Overlap of words (of characters in Chinese, Japanese, Korean): harmonic mean of precision and recall."""
    given, wanted = (Counter(WORDS.findall(folded(text))[:MAX_WORDS]) for text in (answer, truth))
    shared = (given & wanted).total()
    if not given or not wanted:
        return {"score": exact(answer, truth), "precision": 0.0, "recall": 0.0}
    precision, recall = shared / given.total(), shared / wanted.total()
    score = 2 * precision * recall / (precision + recall) if shared else 0.0
    return {"score": score, "precision": precision, "recall": recall}


def folded(text: str) -> str:
    text = " ".join(unicodedata.normalize("NFKC", str(text)).casefold().split())
    text = text.strip("\"'`“”‘’ ")
    return text[:-1].rstrip() if text.endswith(".") and not text.endswith("..") else text
