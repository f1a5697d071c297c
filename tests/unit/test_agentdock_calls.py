"""What the blocks of a tool result become as text."""

import mcp_types as types

from agentdock.calls import CallOutcome, call_outcome, tool_info


def test_blocks_are_joined_and_what_is_no_text_is_named() -> None:
    resource = types.TextResourceContents(uri="file:///a", text="inside")
    content = [
        types.TextContent(text="一"),
        types.TextContent(text="two"),
        types.ImageContent(data="AAAA", mime_type="image/png"),
        types.EmbeddedResource(resource=resource),
        types.ResourceLink(name="b", uri="file:///b"),
    ]
    outcome = call_outcome(types.CallToolResult(content=content))
    assert outcome.text.split("\n") == ["一", "two", "[image image/png, 3 bytes]", "inside", "[resource file:///b]"]


def test_structured_content_stands_in_for_missing_text_only() -> None:
    alone = types.CallToolResult(content=[], structured_content={"k": "值"})
    assert call_outcome(alone) == CallOutcome(text='{"k": "值"}', is_error=False, structured={"k": "值"})
    beside = types.CallToolResult(content=[types.TextContent(text="t")], structured_content=[1], is_error=True)
    content = ({"type": "text", "text": "t"},)
    assert call_outcome(beside) == CallOutcome(text="t", is_error=True, structured=[1], content=content)


def test_a_tool_is_idempotent_if_it_or_the_configuration_says_so() -> None:
    def tool(**hints: bool) -> types.Tool:
        annotations = types.ToolAnnotations(**hints) if hints else None
        return types.Tool(name="t", input_schema={"type": "object"}, annotations=annotations)

    assert not tool_info(tool(), frozenset()).idempotent
    assert not tool_info(tool(read_only_hint=False), frozenset()).idempotent
    assert tool_info(tool(read_only_hint=True), frozenset()).idempotent
    assert tool_info(tool(idempotent_hint=True), frozenset()).idempotent
    assert tool_info(tool(), frozenset({"t"})).idempotent
