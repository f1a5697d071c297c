"""Replies of every format: what is written comes back, hostile text is data, and time stays linear."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.chat import parse_reply
from agentrl.chat.formats.base import MAX_BROKEN
from agentrl.chat.reply import ALIASES, FORMATS
from agentrl.errors import ConfigError
from agentrl.types import CallStatus, Reply, ToolCall, ToolSpec

SEARCH = ToolSpec(
    name="search",
    parameters={
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}},
        "required": ["query"],
    },
)
NASTY = st.sampled_from(
    [
        "</tool_call>",
        "<tool_call>",
        "```",
        "]",
        "}",
        '"',
        "'",
        "\\",
        "\n",
        ";",
        "[TOOL_CALLS]",
        "</think>",
        "<code>",
        "[ARGS]",
        "<|tool_call_end|>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<|tool_call_begin|>",
        "北京",
        "🌧",
        "a b",
        "(",
        ")",
        "=",
    ]
)
STRINGS = (
    st.lists(st.one_of(NASTY, st.text(max_size=5)), max_size=6)
    .map("".join)
    .map(lambda s: s.encode("utf-8", "replace").decode())
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), STRINGS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3), max_leaves=6
)
KEYS = st.sampled_from(["query", "limit", "code2", "x"])
CALLS = st.lists(
    st.tuples(st.sampled_from(["search", "read_file", "get-time"]), st.dictionaries(KEYS, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)
Written = list[tuple[str, dict]]


def raw(arguments: dict) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def write_qwen(calls: Written) -> str:
    return "\n".join(
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}\n</tool_call>" for n, a in calls
    )


def write_mistral(calls: Written) -> str:
    return "[TOOL_CALLS] " + json.dumps([{"name": n, "arguments": a} for n, a in calls], ensure_ascii=False)


def write_mistral_named(calls: Written) -> str:
    return "".join(f"[TOOL_CALLS]{n}[ARGS]{json.dumps(a, ensure_ascii=False)}" for n, a in calls)


def write_llama3(calls: Written) -> str:
    return "; ".join(json.dumps({"name": n, "parameters": a}) for n, a in calls)


def write_deepseek(calls: Written) -> str:
    blocks = [
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{raw(a)}\n```<｜tool▁call▁end｜>" for n, a in calls
    ]
    return "<｜tool▁calls▁begin｜>" + "\n".join(blocks) + "<｜tool▁calls▁end｜>"


def write_kimi(calls: Written) -> str:
    blocks = [
        f"<|tool_call_begin|>functions.{n}:{i}<|tool_call_argument_begin|>{raw(a)}<|tool_call_end|>"
        for i, (n, a) in enumerate(calls)
    ]
    return "<|tool_calls_section_begin|>" + "".join(blocks) + "<|tool_calls_section_end|>"


def python_call(name: str, arguments: dict) -> str:
    return f"{name.replace('-', '_')}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def write_pythonic(calls: Written) -> str:
    return "[" + ", ".join(python_call(n, a) for n, a in calls) + "]"


def write_minicpm(calls: Written) -> str:
    lines = "\n".join(python_call(n, a) for n, a in calls)
    return f"<|tool_call_start|>\n```python\n{lines}\n```\n<|tool_call_end|>"


WRITERS = {
    "qwen": [write_qwen],
    "mistral": [write_mistral, write_mistral_named],
    "llama3": [write_llama3],
    "deepseek_v3": [write_deepseek],
    "kimi_k2": [write_kimi],
    "pythonic": [write_pythonic],
    "minicpm": [write_minicpm],
}
WAYS = [(name, writer) for name, writers in WRITERS.items() for writer in writers]
WAY_IDS = [writer.__name__ for _, writer in WAYS]


def read(format_name: str, calls: tuple[ToolCall, ...]) -> Written:
    return [(call.name, call.arguments or {}) for call in calls if call.status is CallStatus.OK]


def expected(format_name: str, calls: Written) -> Written:
    return [(n.replace("-", "_") if format_name in ("pythonic", "minicpm") else n, a) for n, a in calls]


@pytest.mark.parametrize(("format_name", "writer"), WAYS, ids=WAY_IDS)
@given(calls=CALLS)
@settings(max_examples=60, deadline=None)
def test_what_a_model_writes_is_what_is_called(format_name: str, writer, calls: Written) -> None:
    reply = parse_reply(writer(calls), format=format_name)
    assert read(format_name, reply.calls) == expected(format_name, calls)
    assert all(call.status is CallStatus.OK for call in reply.calls)
    assert reply.content == ""


@pytest.mark.parametrize(("format_name", "writer"), WAYS, ids=WAY_IDS)
@given(calls=CALLS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_a_cut_reply_never_calls_what_the_whole_one_would_not(format_name: str, writer, calls: Written, data) -> None:
    text = writer(calls)
    cut = text[: data.draw(st.integers(0, len(text)))]
    reply = parse_reply(cut, format=format_name, finish_reason="length")
    done = read(format_name, reply.calls)
    assert done == expected(format_name, calls)[: len(done)]
    assert all(call.reason for call in reply.calls if call.status is not CallStatus.OK)


@pytest.mark.parametrize("format_name", FORMATS)
@given(
    text=st.lists(
        st.one_of(
            NASTY,
            st.sampled_from(
                [
                    '{"name": "f", ',
                    '"arguments": {',
                    "f(x=",
                    "<function=f>",
                    "<parameter=x>",
                    "<|python_tag|>",
                    "<|tool_call_start|>",
                    "<｜tool▁sep｜>",
                    "functions.f:0",
                    "<|tool_call_argument_begin|>",
                    "</function>",
                    "</parameter>",
                    "</code>",
                ]
            ),
        ),
        max_size=12,
    ).map("".join),
    finish=st.sampled_from(["stop", "length"]),
)
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_the_parser_and_every_refusal_has_a_reason(format_name: str, text: str, finish: str) -> None:
    reply = parse_reply(text, format=format_name, finish_reason=finish)
    assert all(call.reason for call in reply.calls if call.status is not CallStatus.OK)
    assert all(isinstance(call.arguments, dict) for call in reply.calls if call.status is CallStatus.OK)


ONE_MB = 1_000_000
HOSTILE = {
    "qwen": [
        '<tool_call>{"a',
        "<tool_call>{",
        "<tool_call>",
        '<tool_call>{"name": "PythonInterpreter", "arguments": {}}<code>',
        "</code></tool_call>",
        "<tool_call>[[[[",
        '<tool_call>{"x": {}}</tool_call>',
    ],
    "qwen3_coder_xml": [
        "<tool_call><function=f><parameter=a>",
        "<function=f>",
        "<tool_call>",
        "<parameter=x>\n",
        "<function=f><parameter=a></parameter>",
    ],
    "mistral": ["[TOOL_CALLS][{", "[TOOL_CALLS]", '[TOOL_CALLS]f{"', "[TOOL_CALLS]f[ARGS]{"],
    "llama3": ['{"name": "f", "parameters": {', "{", '{"name": {};', "<|python_tag|>{"],
    "deepseek_v3": ["<｜tool▁call▁begin｜>", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{", "<｜tool▁sep｜>"],
    "kimi_k2": ["<|tool_call_begin|>", "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{", "f_0"],
    "pythonic": ["[f(", "[f(x=[", "f(x='", "f(x=1), ", "[f(x=-"],
    "minicpm": ["<|tool_call_start|>", "<|tool_call_start|>f(x='", "f(x=1)\n", "'"],
}
OPENERS = {
    "minicpm": "<|tool_call_start|>",
    "pythonic": "[f(a=1), ",
    "mistral": "[TOOL_CALLS] [",
    "llama3": "<|python_tag|>",
}


HOSTILE_PIECES = [(name, piece) for name, pieces in HOSTILE.items() for piece in pieces]


def seconds_to_read(format_name: str, piece: str, finish: str, size: int) -> float:
    begun = time.process_time()
    parse_reply(OPENERS.get(format_name, "") + piece * (size // len(piece)), format=format_name, finish_reason=finish)
    return time.process_time() - begun


@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(("format_name", "piece"), HOSTILE_PIECES)
def test_hostile_text_is_read_in_linear_time(format_name: str, piece: str, finish: str) -> None:
    assert seconds_to_read(format_name, piece, finish, 100_000) < 1


@pytest.mark.ci
@pytest.mark.parametrize("finish", ["stop", "length"])
@pytest.mark.parametrize(("format_name", "piece"), HOSTILE_PIECES)
def test_a_megabyte_of_hostile_text_is_read_in_seconds(format_name: str, piece: str, finish: str) -> None:
    assert seconds_to_read(format_name, piece, finish, ONE_MB) < 8


@pytest.mark.parametrize(("format_name", "writer"), WAYS, ids=WAY_IDS)
@pytest.mark.parametrize("filler", ["x", '"', "\\", "</tool_call>", "]", "'", "\n"])
def test_a_megabyte_argument_is_read_and_its_cuts_are_not(format_name: str, writer, filler: str) -> None:
    value = filler * (ONE_MB // len(filler))
    text = writer([("search", {"query": value})])
    begun = time.perf_counter()
    assert read(format_name, parse_reply(text, format=format_name).calls) == [("search", {"query": value})]
    for cut in (len(text) // 2, len(text) // 2 + 1, len(text) - 30):
        assert read(format_name, parse_reply(text[:cut], format=format_name, finish_reason="length").calls) == []
    assert time.perf_counter() - begun < 8


def test_a_cut_call_does_not_run_a_call_quoted_in_its_argument() -> None:
    inner = json.dumps('</tool_call><tool_call>{"name": "wipe", "arguments": {}}</tool_call>')
    text = f'<tool_call>{{"name": "write", "arguments": {{"text": {inner}, "more": "x'
    for finish in ("length", "stop"):
        reply = parse_reply(text, format="qwen", finish_reason=finish)
        assert [call.status for call in reply.calls] == [CallStatus.MALFORMED]


def test_a_broken_call_does_not_remove_the_next_one() -> None:
    good = '<tool_call>{"name": "b", "arguments": {}}</tool_call>'
    for broken in [
        '{"name": "a", "arguments": {"x": "1}}',
        '{"name": "a" "arguments": {}}',
        '{"name": "a", "arguments": {"x": }}',
    ]:
        for between in ("", "\n"):
            reply = parse_reply(f"<tool_call>{broken}</tool_call>{between}{good}", format="hermes")
            assert [(call.name, call.status) for call in reply.calls][-1] == ("b", CallStatus.OK)
            assert [call.status for call in reply.calls] == [CallStatus.MALFORMED, CallStatus.OK]


def test_an_answer_inside_a_broken_call_is_not_content() -> None:
    reply = parse_reply('so <tool_call>{"name": "f", <answer>4</answer>}</tool_call> there', format="qwen")
    assert reply.content.split() == ["so", "there"]
    assert "<answer>" in reply.calls[0].raw


def test_lossless_repairs_are_made_and_recorded() -> None:
    for body in (
        '{"name": "f", "arguments": {"x": 1,},}',
        '{"name": "f", "arguments": {"x": 1}}}',
        "{'name': 'f', 'arguments': {'x': 1}}",
    ):
        (call,) = parse_reply(f"<tool_call>{body}</tool_call>", format="qwen").calls
        assert (call.arguments, call.repaired, call.status) == ({"x": 1}, True, CallStatus.OK)
    (clean,) = parse_reply('<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', format="qwen").calls
    assert not clean.repaired


@pytest.mark.parametrize(
    "program", ["print('</code></tool_call>')", "x = '''<tool_call>{\"name\": 1}'''", "", "\n\nprint(1)\n"]
)
def test_a_program_needs_no_escaping(program: str) -> None:
    call = f'<tool_call>\n{{"name": "execute_code", "arguments": {{}}}}\n<code>\n{program}\n</code>\n</tool_call>'
    other = '<tool_call>\n{"name": "search", "arguments": {}}\n</tool_call>'
    for text, num in ((call, 1), (f"{call}\n{other}", 2), (f"{call}\nand then\n{other}", 2)):
        calls = parse_reply(text, format="qwen").calls
        assert [c.name for c in calls] == ["execute_code", "search"][:num]
        assert calls[0].arguments == {"code": program}


def test_two_programs_are_two_calls() -> None:
    call = '<tool_call>\n{{"name": "PythonInterpreter", "arguments": {{}}}}\n<code>\nprint({})\n</code>\n</tool_call>'
    text = f"{call.format(1)}\nNow the other:\n{call.format(2)}"
    reply = parse_reply(text, format="qwen")
    assert [c.arguments for c in reply.calls] == [{"code": "print(1)"}, {"code": "print(2)"}]
    assert reply.content == "Now the other:"


OPENAI = SEARCH.as_openai()
BARE = {"name": "search", "parameters": dict(SEARCH.parameters)}


@pytest.mark.parametrize("tools", [[SEARCH], [OPENAI], [BARE]], ids=["spec", "openai", "bare"])
def test_calls_are_compared_with_the_declared_tools(tools: list) -> None:
    def call(name: str, arguments: dict) -> ToolCall:
        (found,) = parse_reply(write_qwen([(name, arguments)]), format="qwen", tools=tools).calls
        return found

    assert call("search", {"query": "x"}).status is CallStatus.OK
    wrong_type = call("search", {"query": "x", "limit": "two"})
    assert wrong_type.status is CallStatus.BAD_ARGUMENTS
    assert wrong_type.reason == "arguments.limit: 'two' is not of type 'integer'"
    assert "'query' is a required property" in call("search", {}).reason
    unknown = call("serch", {})
    assert unknown.status is CallStatus.UNKNOWN_TOOL
    assert "did you mean search?" in unknown.reason


def test_a_long_wrong_value_is_not_repeated_to_the_model() -> None:
    (call,) = parse_reply(
        write_qwen([("search", {"query": "q", "limit": "x" * 10_000})]), format="qwen", tools=[SEARCH]
    ).calls
    assert len(call.reason) < 300


def test_a_schema_that_points_elsewhere_is_never_fetched(caplog: pytest.LogCaptureFixture) -> None:
    spec = ToolSpec(name="f", parameters={"$ref": "http://127.0.0.1:9/schema.json"})
    (call,) = parse_reply(write_qwen([("f", {})]), format="qwen", tools=[spec]).calls
    assert call.status is CallStatus.OK
    assert "cannot be used" in caplog.text


@pytest.mark.parametrize("tools", [None, [], ()])
def test_without_declared_tools_nothing_is_compared(tools) -> None:
    assert parse_reply(write_qwen([("f", {})]), format="qwen", tools=tools).calls[0].status is CallStatus.OK


def test_ids_are_nine_letters_and_digits_and_differ() -> None:
    ids = [call.id for call in parse_reply(write_qwen([("f", {})] * 3), format="qwen").calls]
    assert len(set(ids)) == 3
    assert all(len(one) == 9 and one.isalnum() for one in ids)


def test_an_unknown_format_names_the_option_and_the_list() -> None:
    with pytest.raises(ConfigError) as error:
        parse_reply("x", format="yaml")
    assert str(error.value).startswith("--tool_call_parser: ")
    assert all(name in str(error.value) for name in [*FORMATS, *ALIASES])


def test_after_many_broken_calls_the_rest_is_reported_unread() -> None:
    reply = parse_reply('<tool_call>{"name": 1}</tool_call>' * 100 + write_qwen([("f", {})]), format="qwen")
    assert len(reply.calls) == MAX_BROKEN + 1
    assert "the rest was not read" in reply.calls[-1].reason


def test_nothing_in_a_call_is_evaluated(tmp_path) -> None:
    mark = tmp_path / "made"
    for text in (
        f"[f(x=open({str(mark)!r}, 'w'))]",
        f"[f(x=[y for y in [open({str(mark)!r}, 'w')]])]",
        "[f(**{'a': 1}), f(*[1])]",
        "[f(x=f'{1}'), f(x=b'a'), f(x=1+1), f(x={1: 2}), f(x=...), f(x=1j)]",
    ):
        reply = parse_reply(text, format="pythonic")
        assert reply.calls
        assert all(call.status is CallStatus.BAD_ARGUMENTS for call in reply.calls), reply.calls
    assert not mark.exists()


def test_reasoning_only_is_no_content() -> None:
    assert parse_reply("<think>I would say 4", format="qwen") == Reply(reasoning="I would say 4")


XML = ToolSpec(
    name="edit",
    parameters={
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "n": {"type": "integer"},
            "xs": {"type": "array"},
            "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        },
    },
)


def xml(**values: str) -> str:
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>"


@given(
    text=st.lists(
        st.one_of(
            st.sampled_from(["</x>", "<y>", "\n", "  ", "&lt;", "</tool_call>", "</function>", "a"]),
            st.text(max_size=4),
        )
    ).map("".join)
)
@settings(deadline=None)
def test_an_xml_string_is_copied_exactly(text: str) -> None:
    (call,) = parse_reply(xml(text=text, n="3"), format="qwen3_coder_xml", tools=[XML]).calls
    assert call.arguments == {"text": text, "n": 3}


@pytest.mark.parametrize(
    ("values", "arguments"),
    [
        ({"xs": "[1, 'a']"}, {"xs": [1, "a"]}),
        ({"maybe": "null"}, {"maybe": None}),
        ({"maybe": "7"}, {"maybe": 7}),
        ({"n": "7.5"}, None),
        ({"n": "seven"}, None),
        ({"xs": "{}"}, None),
    ],
)
def test_xml_values_are_converted_by_the_declared_type(values: dict, arguments: dict | None) -> None:
    (call,) = parse_reply(xml(**values), format="qwen3_coder_xml", tools=[XML]).calls
    assert call.arguments == arguments
    assert (call.status is CallStatus.OK) == (arguments is not None)


def test_kimi_names_end_where_the_declared_tools_say() -> None:
    text = "<|tool_call_begin|>functions_step_2<|tool_call_argument_begin|>{}<|tool_call_end|>"
    for declared, name in ((["step_2"], "step_2"), (["step"], "step")):
        tools = [ToolSpec(name=one) for one in declared]
        assert parse_reply(text, format="kimi_k2", tools=tools).calls[0].name == name
