"""Arithmetic of the calculator: exact, bounded, and with errors in words."""

import ast
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentdock.servers.arithmetic import ArithmeticProblem, evaluate


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2*3*5*7*11", "2310"),
        ("-2**2", "-4"),
        ("2**-1", "0.5"),
        ("2**3**2", "512"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7 % 3", "2"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333333"),
        ("1e3", "1000"),
        (".5*4", "2"),
        ("10 × (2 − 5) ÷ 3", "-10"),
        ("4**0.5", "2"),
        ("2**200", str(2**200)),
        ("(-1)**1000000001", "-1"),
        ("0**0", "1"),
        ("6/3", "2"),
        ("1/10**400", "1e-400"),
        ("10**400/3", "3.33333333333333e+399"),
        ("2/10**7", "0.0000002"),
    ],
)
def test_values_are_bare_numbers(expression: str, value: str) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("9**9**9", "more than 1000 digits"),
        ("9**9**9**9**9", "more than 1000 digits"),
        ("(2**3000)*(2**3000)", "more than 1000 digits"),
        ("1e999999999", "more than 1000 digits"),
        ("9" * 1500, "more than 1000 digits"),
        ("(" * 900 + "1" + ")" * 900, "nested more than 60"),
        ("-" * 1500 + "1", "nested more than 60"),
        ("2**" * 600 + "1", "nested more than 60"),
        ("1+" * 5000 + "1", "at most 2000"),
        ("1/0", "division by zero"),
        ("1 % (2-2)", "division by zero"),
        ("0**-1", "division by zero"),
        ("(-8)**0.5", "not real"),
        ("__import__('os').system('x')", "unexpected '_' at column 1"),
        ("2 3", "unexpected '3' at column 3"),
        ("2 +", "ends where a number"),
        ("(2", "column 1 is not closed"),
        ("", "empty"),
        ("  ", "empty"),
        ("1 = 1", "unexpected '=' at column 3"),
        ("2 + * 3", "unexpected '*' at column 5; a number was expected"),
    ],
)
def test_hostile_and_wrong_input_is_refused_at_once_in_words(expression: str, problem: str) -> None:
    began = time.perf_counter()
    with pytest.raises(ArithmeticProblem, match=problem.replace("*", r"\*")):
        evaluate(expression)
    assert time.perf_counter() - began < 0.2


NUMBERS = st.integers(0, 99).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.builds(
        lambda a, op, b: f"({a} {op} {b})", inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(EXPRESSIONS)
def test_integer_arithmetic_agrees_with_python(expression: str) -> None:
    try:
        expected = str(eval(compile(ast.parse(expression, mode="eval"), "x", "eval"), {"__builtins__": {}}))
    except ZeroDivisionError:
        expected = "division by zero"
    try:
        found = evaluate(expression)
    except ArithmeticProblem as problem:
        found = str(problem)
    assert found == expected
