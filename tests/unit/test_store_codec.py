"""Packed integers come back as they went, short and long, and what has no JSON form is refused with its place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import StoreError
from agentrl.store import codec

INT32 = st.integers(-(2**31), 2**31 - 1)


@given(st.lists(INT32, max_size=40), st.integers(1, 60))
def test_integers_come_back_whatever_their_number(values: list[int], repeats: int) -> None:
    many = values * repeats
    assert list(codec.unpack_ints(codec.pack_ints(many, "ids"))) == many


@given(st.lists(st.integers(-128, 127), max_size=3000))
def test_mask_codes_come_back(values: list[int]) -> None:
    assert list(codec.unpack_ints(codec.pack_ints(values, "mask", "b"), "b")) == values


def test_long_arrays_of_small_ids_take_less_than_half() -> None:
    ids = [n % 700 for n in range(5000)]
    assert len(codec.pack_ints(ids, "ids")) < len(ids) * 2


def test_an_id_that_does_not_fit_names_its_place() -> None:
    with pytest.raises(StoreError, match=r"turn r/0\.token_ids: expected integers that fit int32"):
        codec.pack_ints([2**31], "turn r/0.token_ids")


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Holder:
    inner: Any


def test_values_are_normalised_the_same_way_at_every_depth() -> None:
    value = {1: Holder((2**63, math.nan, -math.inf, "\ud800", Colour.RED, {"b", "a"}, True, None))}
    expected = {"1": {"inner": [str(2**63), "NaN", "-Infinity", "\\ud800", "red", ["a", "b"], True, None]}}
    assert codec.plain(value) == expected


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1, object()]}, r"doc\.a\[1\] is a object"),
        (Holder({"x": b"bytes"}), r"doc\.inner\.x is a bytes"),
        ([Holder(Holder(complex(1, 2)))], r"doc\[0\]\.inner\.inner is a complex"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_place(value: Any, place: str) -> None:
    with pytest.raises(StoreError, match=place):
        codec.plain(value, "doc")
