"""One spelling for mathematical text: wrappers, spacing and alternative notations are taken off before it is read.

Nothing here evaluates anything; every step is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata

SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
SYMBOLS = {
    "−": "-", "–": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∗": "*", "÷": "/", "⁄": "/",
    "∞": r"\infty ", "π": r"\pi ", "√": r"\sqrt ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ",
    "∈": r"\in ", "±": r"\pm ", "°": r"^{\circ}", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "θ": r"\theta ",
    "’": "'", "，": ",", "；": ";", "（": "(", "）": ")",
}  # fmt: skip
REPLACEMENTS = [
    (re.compile(pattern), to)
    for pattern, to in [
        (r"[\u200b-\u200f\u2060\ufeff]", ""),
        (r"\\(?:left|right)(?:\\?\.(?![\da-zA-Z]))?(?![a-zA-Z])", ""),
        (r"\\[bB]igg?[lr]?(?![a-zA-Z])", ""),
        (r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits)(?![a-zA-Z])|(?<!\\)\\!\s*", ""),
        (r"(?<!\\)\\(?:[,;:> ]|quad(?![a-zA-Z])|qquad(?![a-zA-Z]))|~|\u00a0", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\neq(?![a-zA-Z])|!=", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:R|reals)(?![a-zA-Z])|\\mathbb\s*R(?![a-zA-Z])", r"\\mathbb{R}"),
        (r"\\infin(?![a-zA-Z])", r"\\infty"),
        (r"\\degree(?![a-zA-Z])|\^\s*\\circ(?![a-zA-Z])|\^\s*\{\s*\\circ\s*\}", r"^{\\circ}"),
        (r"\\%", "%"),
        (r"\\mathrm\s*\{\s*([eid])\s*\}", r"\1"),
        (r"\{\s*,\s*\}", ","),
        (r"(?<=\d)\s*_\s*\{\s*(\d+)\s*\}", r"_\1"),
        (r"\*\*", "^"),
        (r"\\lg(?![a-zA-Z])", r"\\log_{10}"),
        (r"\\(?:ast)(?![a-zA-Z])", "*"),
    ]
]
FUNCTIONS = "sqrt|sinh|cosh|tanh|arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|ln|exp|pi|infty|alpha|beta|theta"
BARE_FUNCTION = re.compile(rf"(?<![\\a-zA-Z])({FUNCTIONS})(?![a-zA-Z])")
SHORT_ARGUMENTS = [
    (re.compile(r"\\frac\s*([0-9a-zA-Z])\s*([0-9a-zA-Z])"), r"\\frac{\1}{\2}"),
    (re.compile(r"\\frac\s*([0-9a-zA-Z])\s*\{"), r"\\frac{\1}{"),
    (re.compile(r"\\(sqrt|binom)\s*([0-9]+|[a-zA-Z])(?![a-zA-Z])"), r"\\\1{\2}"),
    (re.compile(r"\\sqrt\s*(\\pi)(?![a-zA-Z])"), r"\\sqrt{\1}"),
]
LABEL_COMMAND = re.compile(
    r"\\(?:textbf|textit|textrm|textsf|mathrm|mathsf|mathbf|mathit|mbox|operatorname|text|rm)\s*\{([^{}]*)\}"
)


def normalize(text: str) -> str:
    """``text`` without wrappers, with one notation for each thing; a box in it is what counts."""
    text = bare(spell(bare(boxed(text) or text)))
    text = BARE_FUNCTION.sub(r"\\\1", text)
    text = braced_roots(text)
    for pattern, to in SHORT_ARGUMENTS:
        text = pattern.sub(to, text)
    return " ".join(text.split())


def spell(text: str) -> str:
    text = re.sub("[⁰¹²³⁴-⁹⁻⁺ⁿ]+", lambda found: "^{" + found[0].translate(SUPERSCRIPTS) + "}", text)
    text = re.sub("[¼-¾⅐-⅞]", lambda found: " " + unicodedata.normalize("NFKC", found[0]), text)
    for symbol, to in SYMBOLS.items():
        text = text.replace(symbol, to)
    text = unicodedata.normalize("NFKC", text)
    for pattern, to in REPLACEMENTS:
        text = pattern.sub(to, text)
    return text


def bare(text: str) -> str:
    while (inner := unwrap(text)) != text:
        text = inner
    return text


def unwrap(text: str) -> str:
    """One layer less of what only surrounds an answer, or the same text."""
    text = text.strip()
    for opening, closing in (
        ("$$", "$$"),
        ("$", "$"),
        (r"\(", r"\)"),
        (r"\[", r"\]"),
        ("**", "**"),
        ("`", "`"),
        ('"', '"'),
    ):
        if len(text) <= len(opening + closing) or not text.startswith(opening) or not text.endswith(closing):
            continue
        inner = text[len(opening) : -len(closing)]
        if opening not in inner and closing not in inner and not inner.endswith("\\"):
            return inner
    if text.startswith("{") and matching_brace(text, 0) == len(text) - 1:
        return text[1:-1]
    if text.endswith(".") and not text.endswith(".."):
        return text[:-1]
    if (label := LABEL_COMMAND.fullmatch(text)) and label[1].strip():
        return label[1]
    return text


def boxed(text: str) -> str | None:
    """Content of the last complete ``\\boxed{...}``."""
    start = text.rfind(r"\boxed")
    while start >= 0:
        opening = start + len(r"\boxed")
        while text[opening : opening + 1].isspace():
            opening += 1
        if text[opening : opening + 1] == "{" and (end := matching_brace(text, opening)) is not None:
            return text[opening + 1 : end]
        start = text.rfind(r"\boxed", 0, start)
    return None


def braced_roots(text: str) -> str:
    """``\\sqrt(x)`` as ``\\sqrt{x}``."""
    while (start := text.find(r"\sqrt(")) >= 0:
        depth, end = 0, None
        for index in range(start + 5, len(text)):
            depth += {"(": 1, ")": -1}.get(text[index], 0)
            if depth == 0:
                end = index
                break
        if end is None:
            return text
        text = text[: start + 5] + "{" + text[start + 6 : end] + "}" + text[end + 1 :]
    return text


def matching_brace(text: str, opening: int) -> int | None:
    depth, index = 0, opening
    while index < len(text):
        if text[index] == "\\":
            index += 2
            continue
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index
        index += 1
    return None
