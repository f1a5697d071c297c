"""A server of the official SDK with the tools of the contract suite."""

import asyncio

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("sdk")


@server.tool()
async def echo(text: str = "") -> str:
    return text


@server.tool()
async def fail(text: str = "") -> str:
    raise ToolError(f"failed on {text}")


@server.tool()
async def hang(text: str = "") -> str:
    await asyncio.sleep(600)
    return text


@server.tool()
async def slow(text: str = "") -> str:
    await asyncio.sleep(0.6)
    return text


@server.tool()
async def big(text: str = "") -> str:
    return "é" * 5_000_000


if __name__ == "__main__":
    server.run("stdio")
