"""Names shown to a model: valid, unique, the same whatever the order, always leading back to one tool."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.tools.catalogue import shown_names

VALID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def test_plain_names_stay_and_shared_names_get_their_server() -> None:
    names = shown_names([("a", "search"), ("b", "search"), ("b", "fetch")])
    assert names == {("a", "search"): "a_search", ("b", "search"): "b_search", ("b", "fetch"): "fetch"}


def test_a_derived_name_never_takes_the_name_of_another_tool() -> None:
    names = shown_names([("a", "search"), ("b", "search"), ("c", "a_search")])
    assert names["c", "a_search"] == "a_search"
    assert len(set(names.values())) == 3


@settings(deadline=None)
@given(st.sets(st.tuples(st.sampled_from(["a", "b.c", "a_b"]), st.text(max_size=80)), max_size=8), st.randoms())
def test_names_are_valid_unique_and_independent_of_order(tools: set[tuple[str, str]], random) -> None:
    listed = sorted(tools)
    names = shown_names(listed)
    assert set(names) == tools
    assert len(set(names.values())) == len(tools)
    assert all(VALID.fullmatch(name) for name in names.values())
    random.shuffle(listed)
    assert shown_names(listed) == names
