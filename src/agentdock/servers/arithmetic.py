"""Exact arithmetic on text: ``+ - * / // % **`` and parentheses, with bounds on length, depth and size of numbers.

A recursive-descent parser with Python's precedence. Integers and fractions are exact; a result that is not an integer
is printed as a decimal number with up to 15 significant digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction

MAX_CHARACTERS = 2000
MAX_DEPTH = 60
MAX_DIGITS = 1000
MAX_BITS = MAX_DIGITS * 10 // 3
SIGNIFICANT_DIGITS = 15
DIGITS = Context(prec=SIGNIFICANT_DIGITS)
TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|(\*\*|//|[-+*/%()])|(\S))")
MEANT = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "（": "(", "）": ")"})


class ArithmeticProblem(Exception):
    """The expression has no value here; the text is a sentence for whoever wrote it."""


def evaluate(expression: str) -> str:
    """The value of ``expression`` as bare text, such as ``2310`` or ``0.5``; raise ``ArithmeticProblem``."""
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticProblem(
            f"the expression has {len(expression)} characters; at most {MAX_CHARACTERS} are allowed"
        )
    return _text(_Parser(_tokens(expression.translate(MEANT))).value())


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    column: int
    is_number: bool


def _tokens(expression: str) -> list[_Token]:
    tokens: list[_Token] = []
    for match in TOKEN.finditer(expression):
        number, operator, other = match.groups()
        column = match.end() - len(number or operator or other) + 1
        if other:
            raise ArithmeticProblem(
                f"unexpected {other!r} at column {column}; only numbers, + - * / // % ** and parentheses are understood"
            )
        tokens.append(_Token(number or operator, column, bool(number)))
    if not tokens:
        raise ArithmeticProblem("the expression is empty")
    return tokens


class _Parser:
    """sum := product (('+'|'-') product)*; product := sign (('*'|'/'|'//'|'%') sign)*; sign := ('+'|'-') sign | power;
    power := atom ('**' sign)?; atom := number | '(' sum ')'."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def value(self) -> Fraction:
        value = self._sum()
        if self._next < len(self._tokens):
            token = self._tokens[self._next]
            raise ArithmeticProblem(f"unexpected {token.text!r} at column {token.column}; an operator was expected")
        return value

    def _take(self, *texts: str) -> str:
        if self._next < len(self._tokens) and self._tokens[self._next].text in texts:
            self._next += 1
            return self._tokens[self._next - 1].text
        return ""

    def _sum(self) -> Fraction:
        value = self._product()
        while operator := self._take("+", "-"):
            right = self._product()
            value = _bounded(value + right if operator == "+" else value - right)
        return value

    def _product(self) -> Fraction:
        value = self._sign()
        while operator := self._take("*", "/", "//", "%"):
            value = _bounded(_multiplied(operator, value, self._sign()))
        return value

    def _sign(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ArithmeticProblem(f"the expression is nested more than {MAX_DEPTH} levels deep")
        try:
            if operator := self._take("+", "-"):
                return self._sign() if operator == "+" else -self._sign()
            return self._power()
        finally:
            self._depth -= 1

    def _power(self) -> Fraction:
        base = self._atom()
        return _raised(base, self._sign()) if self._take("**") else base

    def _atom(self) -> Fraction:
        if self._next >= len(self._tokens):
            raise ArithmeticProblem("the expression ends where a number was expected")
        token = self._tokens[self._next]
        self._next += 1
        if token.is_number:
            return _number(token.text)
        if token.text == "(":
            value = self._sum()
            if not self._take(")"):
                raise ArithmeticProblem(f"the parenthesis at column {token.column} is not closed")
            return value
        raise ArithmeticProblem(f"unexpected {token.text!r} at column {token.column}; a number was expected")


def _number(text: str) -> Fraction:
    exponent = re.search(r"[eE]([+-]?\d+)$", text)
    if len(text) > MAX_DIGITS or (exponent and (len(exponent[1]) > 5 or abs(int(exponent[1])) > MAX_DIGITS)):
        raise ArithmeticProblem(f"a number has more than {MAX_DIGITS} digits")
    return Fraction(text)


def _multiplied(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator == "*":
        return left * right
    if right == 0:
        raise ArithmeticProblem("division by zero")
    if operator == "/":
        return left / right
    return Fraction(left // right) if operator == "//" else left % right


def _raised(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        return _root(base, exponent)
    power = exponent.numerator
    if base == 0 and power < 0:
        raise ArithmeticProblem("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and bits * abs(power) > 2 * MAX_BITS:
        raise ArithmeticProblem(f"the result of ** would have more than {MAX_DIGITS} digits")
    if abs(base) == 1:
        power %= 2
    return _bounded(base**power)


def _root(base: Fraction, exponent: Fraction) -> Fraction:
    if base < 0:
        raise ArithmeticProblem("a negative number to a broken power is not real")
    try:
        return Fraction(float(base) ** float(exponent))
    except (OverflowError, ZeroDivisionError) as error:
        raise ArithmeticProblem(f"the power cannot be computed: {error}") from None


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ArithmeticProblem(f"a number in the computation has more than {MAX_DIGITS} digits")
    return value


def _text(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    rounded = DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator)).normalize()
    plain = -7 <= rounded.adjusted() < SIGNIFICANT_DIGITS
    return format(rounded, "f") if plain else str(rounded).lower()
