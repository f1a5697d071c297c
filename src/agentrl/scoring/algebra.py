"""Equality of two algebraic expressions. Runs in a worker process only: it may need seconds and gigabytes.

The text is parsed by Math-Verify's LaTeX grammar into unevaluated trees; no text is ever evaluated. Equality is decided
on the exact difference: at fixed sample points with 60 digits, and where that says zero for constants and polynomials
the value counts as equal.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy

from agentrl.scoring.math_answer import Answer

DIGITS = 60
MAX_RESULT_DIGITS = 10_000
MAX_FACTORIAL = 3_000
SAMPLES = tuple(
    tuple(sympy.Rational(p, q) for p, q in row)
    for row in (
        ((17, 7), (29, 11), (5, 13), (37, 17), (11, 19), (43, 23), (7, 29)),
        ((3, 8), (7, 5), (41, 12), (2, 9), (23, 6), (9, 14), (31, 10)),
        ((-5, 7), (13, 3), (-11, 8), (19, 5), (-3, 11), (8, 13), (-27, 16)),
        ((-19, 6), (-2, 7), (-31, 9), (-7, 11), (-13, 5), (-43, 12), (-4, 15)),
        ((53, 10), (-17, 4), (29, 15), (-1, 12), (14, 9), (-33, 7), (6, 25)),
    )
)
DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?![\d.])")
DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\{\\circ\}")


class NotAlgebra(ValueError):
    """The text is no expression of the grammar, or a value too large to write down."""


def equal_leaves(left: Answer, right: Answer) -> bool | None:
    """Equality of two expressions, or of two equations as conditions."""
    if left.kind == right.kind == "relation":
        return proportional(difference(left), difference(right))
    return equal_values(parse(left.text), parse(right.text))


def difference(equation: Answer) -> Any:
    one, other = (parse(item.text) for item in equation.items)
    return one - other


def parse(text: str) -> Any:
    """A sympy expression with exact rationals. Raise ``NotAlgebra``."""
    text = DEGREES.sub(r"(\\frac{\1 \\pi}{180})", text.replace("%", r"\%"))
    text = DECIMAL.sub(lambda found: rf"(\frac{{{int(found[1] + found[2])}}}{{{10 ** len(found[2])}}})", text)
    try:
        tree = latex2sympy(text, normalization_config=None, conversion_config=ConversionConfig(lowercase_symbols=False))
    # The grammar reports what it cannot read with bare Exception and whatever sympy raises on the way.
    except Exception as error:
        raise NotAlgebra(f"not an expression: {type(error).__name__}") from error
    if not isinstance(tree, sympy.Expr):
        raise NotAlgebra(f"{type(tree).__name__} is not an expression")
    refuse_huge(tree)
    imaginary = [symbol for symbol in tree.free_symbols if str(symbol) == "i"]
    return tree.subs({symbol: sympy.I for symbol in imaginary}).doit()


def refuse_huge(tree: Any) -> None:
    """Raise ``NotAlgebra`` for powers and factorials whose digits nobody could write."""
    for node in sympy.postorder_traversal(tree):
        if isinstance(node, sympy.factorial) and not small(node.args[0], MAX_FACTORIAL):
            raise NotAlgebra("a factorial too large to write down")
        if isinstance(node, sympy.Pow) and node.exp.is_number:
            digits = len(str(node.base)) if node.base.is_number else 1
            if not small(node.exp, MAX_RESULT_DIGITS // max(digits, 1)):
                raise NotAlgebra("a power too large to write down")


def small(number: Any, limit: int) -> bool:
    """Whether ``number`` certainly lies within the limit: towers and nested factorials never get evaluated for it."""
    if not number.is_number:
        return True
    if any(
        isinstance(node, (sympy.Pow, sympy.factorial)) and not flat(node) for node in sympy.preorder_traversal(number)
    ):
        return False
    return bool(abs(sympy.N(number, 15)) <= limit)


def flat(node: Any) -> bool:
    """A power or factorial of small literal numbers."""
    return all(argument.is_number and abs(sympy.N(argument, 15)) <= 20 and not argument.args for argument in node.args)


def equal_values(left: Any, right: Any) -> bool:
    if left == right:
        return not left.has(sympy.nan, sympy.zoo)
    if any(side.has(sympy.oo, sympy.zoo, sympy.nan) for side in (left, right)):
        return False
    if left.is_Rational and right.is_Rational:
        return False
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    decided = decide(left, right, points(symbols), real_only=True)
    if symbols and len(decided) < 2 and all(decided):
        decided = decide(left, right, points(symbols), real_only=False)
    return all(decided) if decided else sympy.expand(left - right) == 0


def decide(left: Any, right: Any, at: list[dict[Any, Any]], *, real_only: bool) -> list[bool]:
    verdicts = [agrees(left, right, values, real_only=real_only) for values in at]
    return [verdict for verdict in verdicts if verdict is not None]


def points(symbols: list[Any]) -> list[dict[Any, Any]]:
    if not symbols:
        return [{}]
    return [{s: row[i % len(row)] + i // len(row) for i, s in enumerate(symbols)} for row in SAMPLES]


def agrees(left: Any, right: Any, values: dict[Any, Any], *, real_only: bool) -> bool | None:
    """Equality at one point; None where a side has no value, or no real one although the expressions look real."""
    one, other = (side.subs(values) for side in (left, right))
    if one.is_Rational and other.is_Rational:
        return bool(one == other)
    if any(side.has(sympy.nan, sympy.zoo, sympy.oo) for side in (one, other)):
        return None
    size = max(abs(sympy.N(one, 15)), abs(sympy.N(other, 15)))
    if not size.is_finite:
        return None
    digits = DIGITS + min(max(int(sympy.log(size, 10)), 0), MAX_RESULT_DIGITS) if size else DIGITS
    one, other = sympy.N(one, digits), sympy.N(other, digits)
    if not (one.is_number and other.is_number):
        return None
    if real_only and values and not left.has(sympy.I) and not right.has(sympy.I) and not (real(one) and real(other)):
        return None
    return bool(abs(one - other) <= min(size, sympy.Integer(1)) * sympy.Float(10) ** (15 - DIGITS))


def real(value: Any) -> bool:
    return bool(abs(sympy.im(value)) <= abs(value) * sympy.Float(10, DIGITS) ** (15 - DIGITS))


def proportional(left: Any, right: Any) -> bool:
    """Whether one condition is a constant, non-zero multiple of the other."""
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if left.free_symbols != right.free_symbols or not symbols:
        return False
    first = points(symbols)[0]
    factor, other = left.subs(first), right.subs(first)
    if factor == 0 or other == 0:
        return equal_values(left, right)
    return equal_values(left * other, right * factor)
