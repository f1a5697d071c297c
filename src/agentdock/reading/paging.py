"""A part of a text that fits: by characters, and by a budget of tokens that needs no tokenizer."""

from __future__ import annotations

import re
from dataclasses import dataclass

# Measured on common tokenizers, a token holds about four characters of Latin script and one of the wide scripts.
CHARACTERS_PER_TOKEN = 4
WIDE = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
STEP_CHARACTERS = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """``text`` is the part of a text of ``total`` characters that starts at ``offset``."""

    text: str
    offset: int
    total: int

    @property
    def next_offset(self) -> int | None:
        end = self.offset + len(self.text)
        return end if end < self.total else None

    @property
    def note(self) -> str:
        """Where the part lies and how to go on; empty if it is everything."""
        if self.offset >= self.total and self.total:
            return f"[offset {self.offset} is behind the end; there are {self.total} characters]"
        if self.next_offset is not None:
            return (
                f"[characters {self.offset} to {self.next_offset} of {self.total}; more with offset={self.next_offset}]"
            )
        return f"[characters {self.offset} to {self.total} of {self.total}; this is the end]" if self.offset else ""


def page_of(text: str, *, offset: int, limit: int, max_tokens: int) -> Page:
    """At most ``limit`` characters and about ``max_tokens`` tokens, ended at a line or a blank where one is near."""
    end = offset + _fitting(text[offset : offset + limit], max_tokens)
    if end < len(text):
        end = _at_a_gap(text, offset, end)
    return Page(text=text[offset:end], offset=offset, total=len(text))


def num_tokens(text: str) -> int:
    """An estimate, a little high for prose."""
    wide = len(WIDE.findall(text))
    return wide + -(-(len(text) - wide) // CHARACTERS_PER_TOKEN)


def _fitting(text: str, max_tokens: int) -> int:
    """How many characters of ``text`` fit into ``max_tokens``."""
    taken, left = 0, max_tokens
    while taken < len(text) and left > 0:
        step = text[taken : taken + min(STEP_CHARACTERS, left)]
        left -= num_tokens(step)
        taken += len(step)
    return taken


def _at_a_gap(text: str, start: int, end: int) -> int:
    """The last line break, else blank, in the last tenth of the part; ``end`` if there is none."""
    earliest = end - (end - start) // 10
    for gap in ("\n", " "):
        found = text.rfind(gap, earliest, end)
        if found > start:
            return found + 1
    return end
