"""Numbers as they are written, read exactly: integers, decimals, thousands, powers of ten, fractions, mixed numbers."""

from __future__ import annotations

import re
from fractions import Fraction

MAX_DIGITS = 4_000
PLAIN = r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d+)"
NUMBER = re.compile(
    rf"(?P<sign>[-+]?)\s*(?P<whole>{PLAIN})?(?:\.(?P<part>\d*))?"
    r"(?:[eE](?P<e>[-+]?\d+)|\s*(?:\\times|\\cdot|\*|x)\s*10\s*\^\s*(?P<power>[-+]?\d+|\{\s*[-+]?\d+\s*\}))?"
)
TEN_TO = re.compile(r"(?P<sign>[-+]?)\s*10\s*\^\s*(?P<power>[-+]?\d+|\{\s*[-+]?\d+\s*\})")
SIMPLE = r"[-+]?\s*\d+(?:\.\d+)?"
FRACTION = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:\\frac\s*\{{\s*(?P<top>{SIMPLE})\s*\}}\s*\{{\s*(?P<bottom>{SIMPLE})\s*\}}"
    rf"|(?P<left>\d+(?:\.\d+)?)\s*/\s*(?P<right>\d+(?:\.\d+)?))"
)
REPEATING = re.compile(r"(?P<sign>[-+]?)\s*(?P<whole>\d*)\.(?P<part>\d*)\\overline\s*\{\s*(?P<period>\d+)\s*\}")
MIXED = re.compile(
    r"(?P<sign>[-+]?)\s*(?P<whole>\d+)(?:\s+(?P<left>\d+)\s*/\s*(?P<right>\d+)"
    r"|\s*\\frac\s*\{\s*(?P<top>\d+)\s*\}\s*\{\s*(?P<bottom>\d+)\s*\})"
)

Exact = Fraction | tuple[str, str, int]
"""The value; one too long for arithmetic is (sign, digits, power of ten) without leading and trailing zeros."""


def read_number(text: str) -> Exact | None:
    """The number ``text`` is as a whole, or None: ``1,234.5``, ``-0``, ``2.5e-4``, ``1.5\\times10^{3}``."""
    if (found := TEN_TO.fullmatch(text)) is not None:
        return exact(found["sign"], "1", "", found["power"].strip("{} "))
    found = NUMBER.fullmatch(text)
    if found is None or not (found["whole"] or found["part"]):
        return None
    whole = re.sub("[, ]", "", found["whole"] or "")
    return exact(found["sign"], whole, found["part"] or "", (found["e"] or found["power"] or "0").strip("{} "))


def read_fraction(text: str) -> Fraction | None:
    """The number ``text`` is as a fraction, a mixed number or a repeating decimal, or None."""
    for reader in (read_simple, read_mixed, read_repeating):
        if (value := reader(text)) is not None:
            return value
    return None


def read_simple(text: str) -> Fraction | None:
    """``\\frac{-7}{3}`` or ``3/4``; None also for a zero denominator."""
    found = FRACTION.fullmatch(text)
    if found is None or len(text) > MAX_DIGITS:
        return None
    top, bottom = (
        Fraction("".join(part.split())) for part in (found["top"] or found["left"], found["bottom"] or found["right"])
    )
    if bottom == 0:
        return None
    return -top / bottom if found["sign"] == "-" else top / bottom


def read_repeating(text: str) -> Fraction | None:
    """``0.1\\overline{6}``."""
    found = REPEATING.fullmatch(text)
    if found is None or len(text) > MAX_DIGITS:
        return None
    period = Fraction(int(found["period"]), 10 ** len(found["period"]) - 1)
    value = (int(found["whole"] + found["part"] or "0") + period) / 10 ** len(found["part"])
    return -value if found["sign"] == "-" else value


def read_mixed(text: str) -> Fraction | None:
    """``9 3/8`` with a proper fraction."""
    found = MIXED.fullmatch(text)
    if found is None or len(text) > MAX_DIGITS:
        return None
    top, bottom = int(found["left"] or found["top"]), int(found["right"] or found["bottom"])
    if not 0 < top < bottom:
        return None
    value = int(found["whole"]) + Fraction(top, bottom)
    return -value if found["sign"] == "-" else value


def exact(sign: str, whole: str, part: str, power: str) -> Exact | None:
    if len(power) > 12:
        return None
    exponent = int(power) - len(part)
    digits = (whole + part).lstrip("0")
    stripped = digits.rstrip("0")
    exponent += len(digits) - len(stripped)
    if not stripped:
        return Fraction(0)
    if len(stripped) + abs(exponent) > MAX_DIGITS:
        return (sign.replace("+", ""), stripped, exponent)
    value = int(stripped) * Fraction(10) ** exponent
    return -value if sign == "-" else value
