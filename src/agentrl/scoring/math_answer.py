"""The shape of a mathematical answer: number, quantity, list, set, tuple or interval, union, matrix, relation, text.

``read`` splits text into that shape down to leaves, without any computer algebra and without evaluating text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise

from agentrl.scoring.brackets import CLOSERS, OPENERS, encloses, split
from agentrl.scoring.exact_numbers import Exact, read_fraction, read_number
from agentrl.scoring.latex_text import LABEL_COMMAND, normalize
from agentrl.scoring.units import split_unit

MAX_CHARACTERS = 3_000
MAX_DEPTH = 40
MAX_ITEMS = 200

RELATIONS = ("=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\approx", r"\sim", r"\equiv")
REVERSED = {">": "<", r"\ge": r"\le"}
WORD_SEPARATOR = re.compile(r"\\text\{\s*(?:,\s*)?(?:or|and)\s*\}|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])")
COMMAND = re.compile(
    r"\\(?:frac|sqrt|binom|pi|infty|cdot|times|div|(?:arc)?(?:sin|cos|tan)h?|cot|sec|csc|log|ln|lg|exp|alpha|beta|gamma"
    r"|delta|(?:var)?epsilon|(?:var)?theta|lambda|mu|nu|rho|sigma|tau|(?:var)?phi|chi|psi|omega|eta|xi|kappa|zeta|Gamma"
    r"|Delta|Theta|Lambda|Sigma|Phi|Psi|Omega|int|sum|prod|lim|to|[lr]floor|[lr]ceil|max|min|gcd|b?mod|pmod|circ"
    r"|[lr]vert|mid|overline|bar|vec|hat|prime|partial|mathbb|cap|setminus|complement|det|deg)"
)
TOKENS = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|[0-9.]+|[-+*/^_(){}\[\]|!,<>= ]|\\[{}]")
NAME = re.compile(
    r"\\?[a-zA-Z]+(?:_\{?\w+\}?)?'?(?:\s*\(\s*[a-zA-Z](?:\s*,\s*[a-zA-Z])*\s*\))?|[a-zA-Z]\^\{-1\}\([a-zA-Z]\)"
)
NUMBER_BASE = re.compile(r"\d\}?\s*_")
MATRIX = re.compile(r"\\begin\s*\{([a-zA-Z]*matrix|array)\}(?:\{[clr| ]*\})?(.*)\\end\s*\{\1\}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Answer:
    """One node. ``label`` is the brackets of a sequence, the unit of a quantity, the name of an assignment, the
    operators of a relation, the kind of a matrix; ``number`` is the value of a number, ``text`` that of a leaf."""

    kind: str
    items: tuple[Answer, ...] = ()
    label: str = ""
    text: str = ""
    number: Exact | None = None


class Unreadable(ValueError):
    """The text is longer, deeper or wider than an answer can be."""


def read_answer(text: str) -> Answer:
    """The shape of ``text``. Raise ``Unreadable`` for text out of bounds."""
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"{len(text)} characters, at most {MAX_CHARACTERS} are compared")
    depth = deepest = 0
    for character in text:
        depth += (character in OPENERS) - (character in CLOSERS)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        raise Unreadable(f"brackets nested {deepest} deep, at most {MAX_DEPTH} are compared")
    return read(normalize(text))


def read(text: str) -> Answer:
    text = text.strip()
    if not text:
        return Answer("text")
    if (number := read_number(text)) is not None:
        return Answer("number", text=text, number=number)
    if WORD_SEPARATOR.search(text) and (answer := read_list(text)) is not None:
        return answer
    for reader in (read_relation, read_union, read_list, read_matrix, read_group, read_named_set, read_ratio):
        if (answer := reader(text)) is not None:
            return answer
    return read_leaf(text)


def read_relation(text: str) -> Answer | None:
    """``x = 5`` is an assignment, ``1 < x <= 2`` a chain; chains read from small to large."""
    parts, operators = split(text, RELATIONS)
    if not operators or len(operators) > 4 or not all(part.strip() for part in parts):
        return None
    if any(len(split(part, (",", ";"))[0]) > 1 for part in parts[:-1]):
        return None
    if len(operators) == 1 and operators[0] in ("=", r"\in") and NAME.fullmatch(parts[0].strip()):
        return Answer("assigned", (read(parts[1]),), label="".join(parts[0].split()) + operators[0])
    if all(operator in REVERSED for operator in operators):
        parts, operators = parts[::-1], [REVERSED[operator] for operator in operators[::-1]]
    return Answer("relation", tuple(map(read, parts)), label=" ".join(operators), text=text)


def read_union(text: str) -> Answer | None:
    parts, _ = split(text, (r"\cup",))
    if len(parts) == 1 and re.search(r"[\])]\s*U\s*[\[(]", text):
        parts, _ = split(text, ("U",))
    if len(parts) > 1:
        return Answer("union", bounded(map(read, parts)))
    whole, _ = split(text, (r"\setminus", r"\backslash"))
    if len(whole) == 2 and whole[0].strip() in (r"\mathbb{R}", r"(-\infty, \infty)", r"(-\infty,\infty)"):
        return without_points(read(whole[1]))
    return None


def without_points(points: Answer) -> Answer | None:
    """The real line without finitely many numbers, as the union of what is left."""
    if points.kind != "set" or not all(isinstance(item.number, Fraction) for item in points.items):
        return None
    inner = sorted(points.items, key=lambda item: item.number or 0)
    ends = [read_leaf(r"-\infty"), *inner, read_leaf(r"\infty")]
    gaps = [Answer("sequence", pair, label="()") for pair in pairwise(ends)]
    return Answer("union", tuple(gaps))


def read_list(text: str) -> Answer | None:
    if r"\pm" in text or r"\mp" in text:
        signs = [
            text.replace(r"\pm", plus).replace(r"\mp", minus).strip().removeprefix("+") for plus, minus in ("+-", "-+")
        ]
        if r"\pm" not in signs[0] and len(text) < 1000:
            return Answer("list", tuple(map(read, signs)))
    parts, _ = split(WORD_SEPARATOR.sub(",", text), (",", ";"))
    if len(parts) == 1 or ((measured := split_unit(text)) is not None and read_number(measured[0]) is not None):
        return None
    parts = [part for part in parts if part.strip()]
    if len(parts) < 2:
        return read(parts[0]) if parts else None
    return Answer("list", bounded(map(read, parts)))


def read_matrix(text: str) -> Answer | None:
    found = MATRIX.fullmatch(text)
    if found is None or r"\begin" in found[2]:
        return None
    kind = found[1] if found[1] in ("vmatrix", "Vmatrix") else "matrix"
    rows = [row for row in re.split(r"\\\\(?:\[[^\]]*\])?", found[2]) if row.strip()]
    return Answer("matrix", bounded(Answer("row", bounded(map(read, row.split("&")))) for row in rows), label=kind)


def read_group(text: str) -> Answer | None:
    """A bracketed whole: set, tuple, interval, or only an expression in parentheses."""
    for opening, closing in ((r"\{", r"\}"), (r"\langle", r"\rangle"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]")):
        if text.startswith(opening) and text.endswith(closing) and encloses(text, opening, closing):
            inner = text[len(opening) : -len(closing)]
            parts, _ = split(inner, (",", ";"))
            if opening == r"\{":
                return Answer("set", bounded(map(read, parts)) if inner.strip() else ())
            if len(parts) == 1 and opening == "(" and closing == ")":
                return read(inner)
            items = bounded(map(read, parts))
            return as_matrix(items) or Answer("sequence", items, label=opening + closing)
    return None


def as_matrix(rows: Sequence[Answer]) -> Answer | None:
    """Lists of equal length in a list, the way programs write a matrix."""
    if not all(row.kind == "sequence" and row.label == "[]" for row in rows) or len({len(r.items) for r in rows}) != 1:
        return None
    return Answer("matrix", tuple(Answer("row", row.items) for row in rows), label="matrix")


def read_named_set(text: str) -> Answer | None:
    if text == r"\emptyset":
        return Answer("set")
    if text == r"\mathbb{R}":
        return Answer("sequence", (read_leaf(r"-\infty"), read_leaf(r"\infty")), label="()")
    return None


def read_ratio(text: str) -> Answer | None:
    parts, _ = split(text, (":", r"\colon"))
    return Answer("ratio", tuple(map(read, parts))) if 1 < len(parts) <= 6 and all(p.strip() for p in parts) else None


def read_leaf(text: str) -> Answer:
    if (number := read_fraction(text)) is not None:
        return Answer("number", text=text, number=number)
    if (quantity := split_unit(text)) is not None:
        value, unit = read(quantity[0]), quantity[1]
        if unit == "%":
            return percent(value, text)
        if value.kind == "number" or (value.kind == "expression" and unit != "deg"):
            return Answer("quantity", (value,), label=unit)
    if is_expression(text):
        return Answer("expression", text=text)
    return Answer("text", text=plain_words(text))


def percent(value: Answer, text: str) -> Answer:
    if isinstance(value.number, Fraction):
        return replace(value, number=value.number / 100)
    if value.kind == "expression":
        return Answer("expression", text=rf"\frac{{{value.text}}}{{100}}")
    return Answer("text", text=plain_words(text))


def is_expression(text: str) -> bool:
    """Whether every token belongs to algebra: words, quotes, unknown commands make it text."""
    if NUMBER_BASE.search(text):
        return False
    position = 0
    while position < len(text):
        token = TOKENS.match(text, position)
        if token is None:
            return False
        word = token[0]
        if word.startswith("\\") and word[1:].isalpha() and not COMMAND.fullmatch(word):
            return False
        if (
            word.isalpha()
            and not (word[0] == "d" and r"\int" in text)
            and (len(word) > 3 or (len(word) > 1 and alone(text, position, token.end())))
        ):
            return False
        position = token.end()
    return any(character.isalnum() for character in text)


def alone(text: str, start: int, end: int) -> bool:
    return text[start - 1 : start] in ("", " ") and text[end : end + 1] in ("", " ")


def plain_words(text: str) -> str:
    text = LABEL_COMMAND.sub(r"\1", text).strip().strip("\"'`").strip()
    if (letter := re.fullmatch(r"[(\[]\s*(\w+)\s*[)\]]", text)) is not None:
        text = letter[1]
    return " ".join(text.casefold().split())


def bounded(items: Iterable[Answer]) -> tuple[Answer, ...]:
    found = tuple(items)
    if len(found) > MAX_ITEMS:
        raise Unreadable(f"{len(found)} items, at most {MAX_ITEMS} are compared")
    return found
