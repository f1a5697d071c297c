"""The final answer in a reply: the last complete, non-empty container outside the reasoning."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator

BOXED = "boxed"
THINK, THINK_END = "<think>", "</think>"
DOLLARS = re.compile(r"\\.|\$", re.DOTALL)
"""A dollar, or whatever is escaped: ``\\$`` is money, not the end of a formula."""
BRACES = re.compile(r"\\.|[{}]", re.DOTALL)


def extract_answer(text: str, *, schema: str = "answer", prompt_ends_in_think: bool = False) -> str | None:
    """The answer in ``text``, trimmed outside and kept as written inside; None when there is none.

    ``schema`` is ``boxed`` (LaTeX's ``\\boxed``, or ``\\fbox`` if there is no ``\\boxed``) or the name of a tag.
    Without a container there is no answer, never the whole text.
    """
    visible = without_reasoning(text, opened=prompt_ends_in_think)
    if schema == BOXED:
        command = r"\boxed" if re.search(r"\\boxed(?![A-Za-z])", visible) else r"\fbox"
        return last_filled(boxes(visible, command))
    return last_filled(tags(visible, schema))


def without_reasoning(text: str, *, opened: bool) -> str:
    """What follows the reasoning; an unclosed one leaves nothing."""
    if not opened and not text.lstrip().startswith(THINK):
        return text
    return text.partition(THINK_END)[2]


def last_filled(candidates: Iterator[str]) -> str | None:
    """The last candidate that is not blank."""
    found = None
    for candidate in candidates:
        found = candidate.strip() or found
    return found


def tags(text: str, name: str) -> Iterator[str]:
    """Contents of complete tags, each from the last opening tag before its closing tag."""
    opening, closing = f"<{name}>", f"</{name}>"
    position = 0
    while (end := text.find(closing, position)) >= 0:
        start = text.rfind(opening, position, end)
        if start >= 0:
            yield text[start + len(opening) : end]
        position = end + len(closing)


def boxes(text: str, command: str) -> Iterator[str]:
    """Contents of the boxes in the order in which they begin; an unbalanced one is skipped."""
    closes = matching_braces(text)
    dollars = [found.start() for found in DOLLARS.finditer(text) if found.group() == "$"]
    for found in re.finditer(re.escape(command) + r"(?![A-Za-z])(\s*)(\{?)", text):
        if found[2]:
            end = closes.get(found.end() - 1)
            if end is not None:
                yield text[found.end() : end]
        elif found[1] and dollars and found.end() <= dollars[-1]:
            dollar = dollars[bisect_left(dollars, found.end())]
            following = text.find(command, found.end())
            if following < 0 or dollar < following:
                yield text[found.end() : dollar]


def matching_braces(text: str) -> dict[int, int]:
    """Opening brace -> its closing brace. An escaped brace does not count; a double backslash escapes nothing."""
    pairs: dict[int, int] = {}
    open_braces: list[int] = []
    for token in BRACES.finditer(text):
        if token.group() == "{":
            open_braces.append(token.start())
        elif token.group() == "}" and open_braces:
            pairs[open_braces.pop()] = token.start()
    return pairs
