"""The verdict in a judge's reply, read strictly: what does not clearly decide is no verdict, never a score."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, Literal

Verdict = Literal["correct", "incorrect"]

REASONING = re.compile(r"<(think|thinking|reasoning)>.*?</\1>", re.DOTALL | re.IGNORECASE)
OPEN_REASONING = re.compile(r"<(?:think|thinking|reasoning)>", re.IGNORECASE)
CLOSE_REASONING = re.compile(r"</(?:think|thinking|reasoning)>", re.IGNORECASE)
MARKUP = re.compile(r"[*_`\"“”‘’「」『』\[\]#]|(?<!\w)'|'(?!\w)")
LABEL = re.compile(
    r"(?:^|[\n.;!?(])\s*(?:(?:my|the|final|overall)\s+)*(?:verdict|judge?ment|conclusion|decision|grade|rating|result)"
    r"\s*(?:is\s*:?|:|=|-+|–|—)\s*(?P<value>[^\n.;]*)",
    re.IGNORECASE,
)
NEGATED = re.compile(
    r"\b(?:not|never|isn't|isnt|wasn't|aren't|cannot be|can't be|no way)\s+(?:\w+\s+){0,2}?(?P<word>in)?correct\b"
)
HEDGED = re.compile(
    r"\b(?:partially|partly|mostly|somewhat|half|largely|nearly|almost|possibly|probably|maybe|perhaps|might|may|could|whether|if|unsure|unclear)\b"
)
WORD = re.compile(r"\b(in)?correct\b")
VERDICTS: Mapping[str, Verdict] = {"correct": "correct", "incorrect": "incorrect"}


def parse_verdict(reply: str, *, protocol: str = "word") -> Verdict | None:
    """``correct``, ``incorrect``, or None when the reply does not decide; ``protocol`` is what the judge was asked for.

    Reasoning, invisible characters, Markdown and quotes are taken off; a labelled verdict beats prose; of several
    labels the last counts and must be on the menu. Raise ``ValueError`` for an unknown protocol.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"unknown judge protocol {protocol!r}; known: {', '.join(PROTOCOLS)}")
    text = without_reasoning("".join(c for c in reply if unicodedata.category(c) != "Cf"))
    return PROTOCOLS[protocol](text.strip())


def without_reasoning(text: str) -> str:
    """``text`` after its reasoning; nothing when the reasoning never ended."""
    text = REASONING.sub("\n", text)
    if (closing := list(CLOSE_REASONING.finditer(text))) and not OPEN_REASONING.search(text, closing[-1].end()):
        return text[closing[-1].end() :]
    opening = OPEN_REASONING.search(text)
    return text[: opening.start()] if opening else text


def plain(text: str) -> str:
    return MARKUP.sub("", unicodedata.normalize("NFKC", text)).strip()


def word_verdict(reply: str) -> Verdict | None:
    text = plain(reply)
    labelled = [found["value"] for found in LABEL.finditer(text)]
    if labelled:
        return judged_words(labelled[-1])
    lines = re.split(r"\W*\n\W*", text.casefold().strip(" .!?()"))
    alone: list[Verdict] = [VERDICTS[line] for line in lines if line in VERDICTS]
    return alone[0] if len(set(alone)) == 1 else judged_words(text)


def judged_words(text: str) -> Verdict | None:
    """The one verdict all mentions of (in)correct agree on, negation counted, hedges refused."""
    text = " ".join(text.casefold().split())
    if HEDGED.search(text):
        return None
    verdicts: set[Verdict] = set()

    def note(found: re.Match[str]) -> str:
        verdicts.add("correct" if found["word"] else "incorrect")
        return " "

    text = NEGATED.sub(note, text)
    verdicts |= {"incorrect" if found[1] else "correct" for found in WORD.finditer(text)}
    return verdicts.pop() if len(verdicts) == 1 else None


def labelled_line(reply: str, label: str, menu: Mapping[str, Verdict]) -> Verdict | None:
    """The value of the last line ``label: value``; the value must begin with exactly one word of the menu."""
    values = re.findall(rf"^\W*{label}\W*?\s*[:=]\s*(.*)$", plain(reply), re.IGNORECASE | re.MULTILINE)
    if not values:
        return None
    value = values[-1].strip().casefold()
    named: list[tuple[str, Verdict]] = [
        (word, verdict) for word, verdict in menu.items() if re.match(rf"{word}(?!\w)", value)
    ]
    if not named or re.match(rf"{named[0][0]}\s*(?:/|\||or\b)", value):
        return None
    return named[0][1]


def yes_no_verdict(reply: str) -> Verdict | None:
    return labelled_line(reply, "correct", {"yes": "correct", "no": "incorrect"})


def letter_verdict(reply: str) -> Verdict | None:
    text = plain(reply)
    menu: Mapping[str, Verdict] = {"A": "correct", "B": "incorrect"}
    if (alone := re.fullmatch(r"\W*([A-Za-z])\W*", text)) is not None:
        return menu.get(alone[1].upper())
    label = r"(?:grade|answer|verdict|choice|option|decision|judge?ment)"
    labelled = re.findall(
        rf"\b(?i:{label})\b\s*(?i:is\b\s*:?|:|=|-)\s*(?i:option\s+)?\(?([A-Za-z]+)\b\)?(?P<rest>[^.\n]*)", text
    )
    if not labelled:
        return None
    letter, rest = labelled[-1]
    return None if re.search(r"\b(?:or|and)\s+\(?[A-Z]\b", rest) else menu.get(letter)


def json_verdict(reply: str) -> Verdict | None:
    """Of the last object that has ``correct``; a boolean, or the words true and false."""
    found = [value["correct"] for value in json_objects(reply) if "correct" in value]
    if not found:
        return None
    last = found[-1]
    if isinstance(last, str):
        last = {"true": True, "false": False}.get(last.strip().casefold())
    return None if not isinstance(last, bool) else "correct" if last else "incorrect"


def json_objects(text: str) -> list[dict[str, Any]]:
    decoder, found, index = json.JSONDecoder(), [], text.find("{")
    attempts = 0
    while index >= 0 and attempts < 100:
        attempts += 1
        try:
            value, end = decoder.raw_decode(text, index)
            found += [value] if isinstance(value, dict) else []
        except (ValueError, RecursionError):
            end = index + 1
        index = text.find("{", end)
    return found


def zh_verdict(reply: str) -> Verdict | None:
    values = re.findall(r"结论\s*(?:是|为)?\s*[:=]?\s*(.*)", plain(reply))
    if not values:
        return None
    value = values[-1].strip().strip("。.!'")
    menu: Mapping[str, Verdict] = {
        "正确": "correct",
        "错误": "incorrect",
        "不正确": "incorrect",
        "不对": "incorrect",
        "没有错误": "correct",
    }
    word = re.match(r"(没有错误|不正确|不对|正确|错误)(?!\w)", value)
    return menu[word[1]] if word else None


def grade_verdict(reply: str) -> Verdict | None:
    """``GRADE: C`` or ``GRADE: I``; upper case, a word of its own, not part of ``downgrade``."""
    values = re.findall(r"(?<!\w)(?i:grade)\s*[:=]\s*(\w+)", plain(reply))
    menu: Mapping[str, Verdict] = {"C": "correct", "I": "incorrect"}
    return menu.get(values[-1]) if values else None


PROTOCOLS: Mapping[str, Callable[[str], Verdict | None]] = {
    "word": word_verdict,
    "yes_no": yes_no_verdict,
    "letter": letter_verdict,
    "json": json_verdict,
    "zh": zh_verdict,
    "grade": grade_verdict,
}
