"""Splitting mathematical text outside its brackets and environments."""

from __future__ import annotations

from collections.abc import Sequence

OPENERS, CLOSERS = "([{", ")]}"


def split(text: str, separators: Sequence[str]) -> tuple[list[str], list[str]]:
    """Parts of ``text`` between ``separators`` outside brackets and environments, and the separators met."""
    if not any(separator in text for separator in separators):
        return [text], []
    parts, met, start, index, depth = [], [], 0, 0, 0
    while index < len(text):
        step = opening_step(text, index)
        if step is not None:
            depth += step[1]
            index += step[0]
            continue
        found = separator_at(text, index, separators) if depth == 0 else None
        if found is None:
            index += 2 if text[index] == "\\" else 1
            continue
        parts.append(text[start:index])
        met.append(found)
        index = start = index + len(found)
    return ([*parts, text[start:]], met) if depth == 0 else ([text], [])


def opening_step(text: str, index: int) -> tuple[int, int] | None:
    """(characters, change of depth) of a bracket or environment at ``index``."""
    if text[index] in OPENERS:
        return 1, 1
    if text[index] in CLOSERS:
        return 1, -1
    if text[index] != "\\":
        return None
    for word, change in ((r"\begin", 1), (r"\end", -1), (r"\{", 1), (r"\}", -1), (r"\langle", 1), (r"\rangle", -1)):
        if text.startswith(word, index):
            return len(word), change
    return None


def separator_at(text: str, index: int, separators: Sequence[str]) -> str | None:
    for separator in separators:
        after = text[index + len(separator) : index + len(separator) + 1]
        if text.startswith(separator, index) and not (separator.startswith("\\") and after.isalpha()):
            return separator
    return None


def encloses(text: str, opening: str, closing: str) -> bool:
    """Whether the first bracket of ``text`` is closed by its last."""
    index = depth = 0
    while index < len(text):
        step = opening_step(text, index)
        if step is None:
            index += 2 if text[index] == "\\" else 1
            continue
        depth += step[1]
        index += step[0]
        if depth == 0:
            return index == len(text)
    return False
