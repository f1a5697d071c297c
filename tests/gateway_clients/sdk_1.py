"""What a client of the official SDK 1.x makes of a gateway, as JSON: sdk_1.py URL, token in the environment."""

import asyncio
import json
import os
import sys
from datetime import timedelta

from mcp import ClientSession, McpError
from mcp.client.streamable_http import streamablehttp_client


async def facts(session: ClientSession) -> dict:
    found = {"tools": [tool.name for tool in (await session.list_tools()).tools]}
    found["ok"] = said(await session.call_tool("echo", {"text": "é 42"}))
    found["failed"] = said(await session.call_tool("fail", {"text": "this"}))
    try:
        await session.call_tool("nothing", {})
    except McpError as error:
        found["unknown"] = error.error.message
    await session.send_ping()
    found["prompts"] = [prompt.name for prompt in (await session.list_prompts()).prompts]
    found["resources"] = [resource.name for resource in (await session.list_resources()).resources]
    found["image"] = said(await session.call_tool("image", {}))
    found["afterwards"] = said(await session.call_tool("echo", {"text": "still here"}))
    return found


def said(result) -> list:
    (block,) = result.content
    if block.type == "image":
        return [result.isError, block.mimeType, block.data]
    return [result.isError, block.text]


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['AGENTDOCK_TOKEN']}"}
    async with (
        streamablehttp_client(f"{sys.argv[1]}/mcp", headers=headers, timeout=timedelta(seconds=30)) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        print(json.dumps(await facts(session)))


asyncio.run(main())
