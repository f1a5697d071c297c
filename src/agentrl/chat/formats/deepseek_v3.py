"""DeepSeek V3: typed blocks with fenced JSON, and the bare blocks of V3.1."""

from __future__ import annotations

import re

from agentrl.chat.formats.base import Draft, Format
from agentrl.chat.formats.marked import Marks, read_calls

SEPARATOR = "<｜tool▁sep｜>"
HEADER = re.compile(
    rf"\s*(\w+)?\s*{SEPARATOR}[ \t]*([\w.:-]+)\s*```(?:json)?\s*(?=\S)|\s*([\w.:-]+)\s*{SEPARATOR}\s*(?=\{{)"
)


def name_of(header: re.Match[str], draft: Draft) -> tuple[str, str]:
    return header[2] or header[3], ""


MARKS = Marks(
    begin="<｜tool▁call▁begin｜>",
    end="<｜tool▁call▁end｜>",
    around=("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    header=HEADER,
    name_of=name_of,
    behind=re.compile(r"\s*(?:```)?\s*"),
)


def parse(text: str, draft: Draft) -> None:
    read_calls(text, MARKS, draft)


FORMAT = Format(parse=parse)
