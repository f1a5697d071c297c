"""The MCP side of a built-in server: one tool, checked arguments, errors as text that the model can use."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from agentdock.reading.document import Picture

JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a tool gives back; ``structured`` goes beside the text, ``pictures`` after it."""

    text: str
    is_error: bool = False
    structured: dict[str, Any] | None = None
    pictures: tuple[Picture, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """A tool and the coroutine function that runs it on checked arguments. ``open_world``: it reaches the network."""

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[[dict[str, Any]], Awaitable[Answer]]
    read_only: bool
    open_world: bool = False

    def as_mcp(self) -> types.Tool:
        hints = types.ToolAnnotations(
            read_only_hint=self.read_only, idempotent_hint=self.read_only, open_world_hint=self.open_world
        )
        return types.Tool(name=self.name, description=self.description, input_schema=self.parameters, annotations=hints)


def coerced(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """``arguments`` with a string made a list where a list is expected: the JSON list it holds, or itself the item."""
    listed = {name for name, schema in parameters["properties"].items() if schema["type"] == "array"}
    return {
        name: _as_list(value) if name in listed and isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _as_list(text: str) -> list[Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return [text]
    return value if isinstance(value, list) else [text]


def argument_problem(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, as a sentence; empty if nothing is.

    Reads ``required``, and of a property its type, enum, bounds and items.
    """
    properties: Mapping[str, Any] = parameters["properties"]
    expected = ", ".join(f"{name} ({schema['type']})" for name, schema in properties.items())
    for name in parameters.get("required", ()):
        if name not in arguments:
            return f"argument {name!r} is missing; expected {expected}"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name!r}; expected {expected}"
        problem = _value_problem(properties[name], value)
        if problem:
            return f"argument {name!r} {problem}"
    return ""


def _is_of(kind: str, value: Any) -> bool:
    return isinstance(value, JSON_TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _value_problem(schema: Mapping[str, Any], value: Any) -> str:
    kind = schema["type"]
    if not _is_of(kind, value):
        return f"must be of type {kind}, not {type(value).__name__}"
    if value not in schema.get("enum", (value,)):
        return f"must be one of {', '.join(map(str, schema['enum']))}, not {value!r}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"must be at least {schema['minimum']}, not {value}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"must be at most {schema['maximum']}, not {value}"
    return _items_problem(schema, value) if kind == "array" else ""


def _items_problem(schema: Mapping[str, Any], items: list[Any]) -> str:
    fewest, most = schema.get("minItems", 0), schema.get("maxItems", len(items))
    if not fewest <= len(items) <= most:
        return f"has {len(items)} items; it takes {fewest} to {most}"
    for number, item in enumerate(items, start=1):
        problem = _value_problem(schema["items"], item)
        if problem:
            return f"item {number}: {problem}"
    return ""


async def nothing() -> None:
    return None


def serve(tool: ServedTool, *, on_end: Callable[[], Awaitable[None]] = nothing) -> None:
    """Serve ``tool`` over stdin and stdout until stdin ends, then await ``on_end``."""
    asyncio.run(_serve(tool, on_end))


async def _serve(tool: ServedTool, on_end: Callable[[], Awaitable[None]]) -> None:
    async def on_list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.as_mcp()])

    async def on_call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await _answer(tool, params)
        pictures = [
            types.ImageContent(data=picture.base64, mime_type=picture.media_type) for picture in answer.pictures
        ]
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text), *pictures],
            is_error=answer.is_error,
            structured_content=answer.structured,
        )

    server = Server(f"agentdock-{tool.name}", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    try:
        async with stdio_server() as (read_stream, write_stream):
            await server.run(read_stream, write_stream, server.create_initialization_options())
    finally:
        await on_end()


async def _answer(tool: ServedTool, params: types.CallToolRequestParams) -> Answer:
    if params.name != tool.name:
        return Answer(text=f"there is no tool {params.name!r} here; the only one is {tool.name!r}", is_error=True)
    arguments = coerced(tool.parameters, params.arguments or {})
    problem = argument_problem(tool.parameters, arguments)
    if problem:
        return Answer(text=problem, is_error=True)
    return await tool.run(arguments)
