"""What models send instead of what a schema asks for, and what they are told."""

import logging
from typing import Any

import pytest

from agentdock.arguments import Fitted, fit

SEARCH = {
    "type": "object",
    "properties": {
        "query": {"type": "array", "items": {"type": "string"}},
        "limit": {"type": "integer", "minimum": 1},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "filter": {"$ref": "#/$defs/Filter"},
        "pages": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}]},
        "kind": {"enum": ["news", "images"], "type": "string"},
        "free": {},
    },
    "required": ["query"],
    "additionalProperties": False,
    "$defs": {"Filter": {"type": "object", "properties": {"year": {"type": "integer"}}}},
}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"query": "one"}, {"query": ["one"]}),
        ({"query": '["a", "b"]'}, {"query": ["a", "b"]}),
        ({"query": "[not json"}, {"query": ["[not json"]}),
        ({"query": [1, "b"]}, {"query": ["1", "b"]}),
        ({"query": [], "limit": "5"}, {"query": [], "limit": 5}),
        ({"query": [], "limit": " 5 "}, {"query": [], "limit": 5}),
        ({"query": [], "ratio": "0.5"}, {"query": [], "ratio": 0.5}),
        ({"query": [], "deep": "True"}, {"query": [], "deep": True}),
        ({"query": [], "filter": '{"year": "2024"}'}, {"query": [], "filter": {"year": 2024}}),
        ({"query": [], "pages": "3"}, {"query": [], "pages": [3]}),
        ({"query": [], "pages": "[1, 2]"}, {"query": [], "pages": [1, 2]}),
        (
            {"query": [], "kind": "news", "free": "5", "pages": None},
            {"query": [], "kind": "news", "free": "5", "pages": None},
        ),
    ],
)
def test_a_slip_is_put_right(given: dict[str, Any], sent: dict[str, Any]) -> None:
    fitted = fit(given, SEARCH)
    assert (fitted.arguments, fitted.complaint) == (sent, "")
    assert bool(fitted.notes) == (given != sent)


def test_a_text_is_never_changed_where_a_text_is_allowed() -> None:
    schema = {"type": "object", "properties": {"code": {"type": "string"}, "any": {"type": ["string", "integer"]}}}
    given = {"code": "[1, 2]", "any": "5"}
    assert fit(given, schema) == Fitted(arguments=given)
    mixed = {"code": 7, "any": "5"}
    assert fit(mixed, schema) == Fitted(arguments={"code": "7", "any": "5"}, notes=('code: 7 was read as "7"',))


def test_what_was_changed_is_told() -> None:
    assert fit({"query": "x", "limit": "5"}, SEARCH).notes == (
        'query: "x" was read as ["x"]',
        'limit: "5" was read as 5',
    )


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({}, "missing 'query' (array)"),
        ({"qury": ["x"], "query": []}, "unknown 'qury'; did you mean 'query'?"),
        ({"query": [], "zzz": 1}, "unknown 'zzz'; known are query, limit,"),
        ({"query": [], "limit": "many"}, 'limit: "many" is not integer'),
        ({"query": [], "limit": 0}, "limit: 0 is less than the minimum of 1"),
        ({"query": [], "kind": "video"}, 'kind: "video" is not one of ["news", "images"]'),
        ({"query": [], "filter": {"year": "soon"}}, 'filter.year: "soon" is not integer'),
        ({"query": [["x"]]}, 'query[0]: ["x"] is not string'),
        ({"query": None}, "query: null is not array"),
    ],
)
def test_what_cannot_be_put_right_is_named_with_field_and_expectation(given: dict[str, Any], complaint: str) -> None:
    assert fit(given, SEARCH).complaint.startswith(complaint)


def test_a_long_value_is_shortened_and_many_mistakes_are_counted() -> None:
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcde"}}
    complaint = fit({name: "x" * 10_000 for name in "abcde"}, schema).complaint
    assert len(complaint) < 1000
    assert complaint.endswith("; 2 more")


def test_modes_check_without_changing_and_pass_without_checking() -> None:
    assert fit({"query": "x"}, SEARCH, mode="check").complaint == 'query: "x" is not array'
    assert fit({"query": 5, "zzz": 1}, SEARCH, mode="pass") == Fitted(arguments={"query": 5, "zzz": 1})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": {"type": "text"}}},
        {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x.json"}}},
        {"$ref": "#/$defs/Missing"},
    ],
)
def test_a_schema_that_cannot_be_used_checks_nothing_and_is_logged(
    schema: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert fit({"a": "5"}, schema) == Fitted(arguments={"a": "5"})
    assert "schema cannot be used" in caplog.text


def test_a_schema_that_refers_to_itself_ends() -> None:
    loop = {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "properties": {"x": {"type": "integer"}}}
    tree = {
        "type": "object",
        "properties": {"size": {"type": "integer"}, "child": {"$ref": "#"}},
    }
    assert fit({"x": "1"}, loop).arguments == {"x": 1}
    assert fit({"child": {"child": {"size": "3"}}}, tree).arguments == {"child": {"child": {"size": 3}}}
