"""Kimi K2: special tokens around an id that holds the name (``functions.NAME:N``) and a JSON object."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import Draft, Format
from agentrl.chat.formats.marked import Marks, read_calls

PREFIX = re.compile(r"functions[._:]")
NUMBER = re.compile(r"[:_]\d+\Z")
MAX_GLUED = 200
GLUED = re.compile(r"(?:functions)?[._:]?(.+?)[._:]?\d+\Z")


def name_of(header: re.Match[str], draft: Draft) -> tuple[str, str]:
    """The declared tools decide where the name ends; without them a number behind ``:`` or ``_`` is the call's.

    Ids without separators (``functionssearch5``) are read only as a declared name; a bare number names no tool.
    """
    written = header[1].strip()
    without_prefix = PREFIX.sub("", written, count=1) if PREFIX.match(written) else written
    readings = [written, without_prefix, NUMBER.sub("", without_prefix), NUMBER.sub("", written)]
    if len(written) <= MAX_GLUED and (glued := GLUED.match(written)):
        readings.append(glued[1])
    declared = [name for name in readings if name in draft.context.tools]
    if not declared and written.isdecimal():
        return "", written
    return (declared[0] if declared else NUMBER.sub("", without_prefix)), written


MARKS = Marks(
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    around=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
    ),
    header=re.compile(r"([^<\n]*[^<\s])\s*<\|tool_call_argument_begin\|>\s*(?=\S)"),
    name_of=name_of,
    behind=re.compile(r"\s*"),
)


def parse(text: str, draft: Draft) -> None:
    read_calls(text, MARKS, draft)


FORMAT = Format(parse=parse)
