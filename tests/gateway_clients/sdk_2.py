"""What a client of the official SDK 2.x makes of a gateway: sdk_2.py URL MODE, token in the environment."""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError


async def facts(client: Client, *, can_ping: bool) -> dict:
    found = {"tools": [tool.name for tool in (await client.list_tools()).tools]}
    found["ok"] = said(await client.call_tool("echo", {"text": "é 42"}))
    found["failed"] = said(await client.call_tool("fail", {"text": "this"}))
    try:
        await client.call_tool("nothing", {})
    except MCPError as error:
        found["unknown"] = error.error.message
    if can_ping:
        await client.send_ping()
    found["prompts"] = [prompt.name for prompt in (await client.list_prompts()).prompts]
    found["resources"] = [resource.name for resource in (await client.list_resources()).resources]
    found["image"] = said(await client.call_tool("image", {}))
    found["afterwards"] = said(await client.call_tool("echo", {"text": "still here"}))
    return found


def said(result) -> list:
    (block,) = result.content
    if block.type == "image":
        return [result.is_error, block.mime_type, block.data]
    return [result.is_error, block.text]


async def main() -> None:
    url, mode = sys.argv[1:]
    headers = {"Authorization": f"Bearer {os.environ['AGENTDOCK_TOKEN']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        print(json.dumps(await facts(client, can_ping=mode == "legacy")))


asyncio.run(main())
