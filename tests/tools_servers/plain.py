"""A server of the 2026 protocol whose tool ``numbers`` has a structured result that is no object."""

import asyncio

from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult

TOOL = {"name": "numbers", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}}


async def list_tools(context, params):
    return ListToolsResult.model_validate({"tools": [TOOL]})


async def call_tool(context, params):
    content = [{"type": "text", "text": "[1, 2]"}]
    return CallToolResult.model_validate({"content": content, "structuredContent": [1, 2]})


async def main() -> None:
    server = Server("plain", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(main())
