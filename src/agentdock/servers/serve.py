"""The MCP side of a built-in server: one tool, checked arguments, errors as text that the model can use."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

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
    """What a tool gives back; ``structured`` goes beside the text."""

    text: str
    is_error: bool = False
    structured: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """A tool and the coroutine function that runs it on checked arguments."""

    name: str
    description: str
    parameters: dict[str, Any]
    run: Callable[[dict[str, Any]], Awaitable[Answer]]
    read_only: bool

    def as_mcp(self) -> types.Tool:
        hints = types.ToolAnnotations(
            read_only_hint=self.read_only, idempotent_hint=self.read_only, open_world_hint=False
        )
        return types.Tool(name=self.name, description=self.description, input_schema=self.parameters, annotations=hints)


def argument_problem(parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """What is wrong with ``arguments``, as a sentence; empty if nothing is. Reads types and ``required`` only."""
    properties: Mapping[str, Any] = parameters["properties"]
    expected = ", ".join(f"{name} ({schema['type']})" for name, schema in properties.items())
    for name in parameters.get("required", ()):
        if name not in arguments:
            return f"argument {name!r} is missing; expected {expected}"
    for name, value in arguments.items():
        if name not in properties:
            return f"there is no argument {name!r}; expected {expected}"
        kind = properties[name]["type"]
        if not isinstance(value, JSON_TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
            return f"argument {name!r} must be of type {kind}, not {type(value).__name__}"
    return ""


def serve(tool: ServedTool) -> None:
    """Serve ``tool`` over stdin and stdout until stdin ends."""
    asyncio.run(_serve(tool))


async def _serve(tool: ServedTool) -> None:
    async def on_list_tools(context: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool.as_mcp()])

    async def on_call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        answer = await _answer(tool, params)
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text)],
            is_error=answer.is_error,
            structured_content=answer.structured,
        )

    server = Server(f"agentdock-{tool.name}", on_list_tools=on_list_tools, on_call_tool=on_call_tool)
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())


async def _answer(tool: ServedTool, params: types.CallToolRequestParams) -> Answer:
    if params.name != tool.name:
        return Answer(text=f"there is no tool {params.name!r} here; the only one is {tool.name!r}", is_error=True)
    arguments = dict(params.arguments or {})
    problem = argument_problem(tool.parameters, arguments)
    if problem:
        return Answer(text=problem, is_error=True)
    return await tool.run(arguments)
