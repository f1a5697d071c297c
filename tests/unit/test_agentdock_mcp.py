"""MCP of the gateway, by the official client in both protocols over real HTTP and to real server processes."""

import asyncio
import base64
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, ImageContent, TextContent

from agentdock.calllog import CALLS_FILE
from agentdock.config import DockConfig, GatewayOptions, Profile
from agentdock.discovery import Token
from agentdock.dock import Dock
from agentdock.gateway import mcp_routes
from agentdock.gateway.app import serving
from agentdock.spec import ServerSpec, Serving

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
SECRET = "a-token-of-the-tests"
BOTH = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
Scene = Callable[[str], Awaitable[None]]


def odd(name: str, *args: str) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=("-S", str(ODD), *args))


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def play(tmp_path: Path, scene: Scene, *servers: ServerSpec, **options: Any) -> None:
    async def main() -> None:
        profiles = {
            "default": Profile(name="default"),
            "small": Profile(name="small", servers=("a",), tools=("*.echo",)),
        }
        gateway = GatewayOptions(port=0, **options)
        dock = Dock(DockConfig(servers=servers or (odd("a"),), profiles=profiles, gateway=gateway), state_dir=tmp_path)
        try:
            await dock.start()
            async with serving(dock, token=Token(value=SECRET, file=None)) as url:
                await scene(url)
        finally:
            await dock.close()

    asyncio.run(main())


class Connected:
    """A client of the gateway's MCP, with further headers on every request."""

    def __init__(self, url: str, mode: Any, **headers: str) -> None:
        self._http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {SECRET}"} | headers, timeout=30)
        self._client = Client(streamable_http_client(url, http_client=self._http), mode=mode)

    async def __aenter__(self) -> Client:
        return await self._client.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)
        await self._http.aclose()


@BOTH
def test_tools_are_listed_and_called_and_a_failing_tool_is_marked(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools][:2] == ["echo", "fail"]
            assert tools[0].input_schema["properties"] == {"text": {"type": "string"}}
            for name in ("echo", "a.echo"):
                result = await client.call_tool(name, {"text": "é 42"})
                assert (result.is_error, text_of(result)) == (False, "é 42")
            failed = await client.call_tool("fail", {"text": "this"})
            assert (failed.is_error, text_of(failed)) == (True, "failed on this")
            with pytest.raises(MCPError, match="no tool 'nothing'") as unknown:
                await client.call_tool("nothing", {})
            assert unknown.value.code == -32602
            assert (await client.list_prompts()).prompts == []
            assert (await client.list_resources()).resources == []

    play(tmp_path, scene)


@BOTH
def test_what_goes_wrong_between_gateway_and_tool_is_an_error_result_with_its_code(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode, **{"X-AgentDock-Timeout": "5"}) as client:
            for tool, arguments, code in (
                ("echo", {"text": {"not": "text"}}, "invalid_arguments"),
                ("die", {}, "server_died"),
            ):
                result = await client.call_tool(tool, arguments)
                assert result.is_error
                assert result.meta is not None
                assert result.meta["agentdock/error"]["code"] == code
        async with Connected(f"{url}/mcp", mode, **{"X-AgentDock-Timeout": "0.3"}) as client:
            result = await client.call_tool("hang", {})
            assert result.is_error
            assert result.meta is not None
            assert result.meta["agentdock/error"] == {"code": "timeout", "retryable": False}

    play(tmp_path, scene)


@BOTH
def test_the_path_chooses_the_profile(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/p/small/mcp", mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["echo"]
            with pytest.raises(MCPError, match="no tool 'fail'"):
                await client.call_tool("fail", {})
        right = {"Authorization": f"Bearer {SECRET}"}
        async with aiohttp.ClientSession(headers=right) as http, http.post(f"{url}/p/large/mcp", json={}) as answer:
            assert (answer.status, (await answer.json())["content"]["code"]) == (404, "unknown_profile")

    play(tmp_path, scene, odd("a"), odd("b"))


@BOTH
def test_long_lists_come_in_pages(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_routes, "PAGE_SIZE", 2)

    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            names, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert names == ["echo", "fail", "hang", "slow", "big"]
            with pytest.raises(MCPError, match="cursor 'x'"):
                await client.list_tools(cursor="x")

    play(tmp_path, scene, odd("a", "--tools", "echo,fail,hang,slow,big"))


def test_mcp_is_behind_the_same_checks_as_all_else(tmp_path: Path) -> None:
    async def scene(url: str) -> None:
        right = {"Authorization": f"Bearer {SECRET}"}
        async with aiohttp.ClientSession() as http:
            for headers, status, code in (
                ({}, 401, "unauthorized"),
                (right | {"Origin": "http://evil.example"}, 403, "wrong_origin"),
                (right | {"Host": "evil.example"}, 403, "wrong_host"),
            ):
                for path in ("/mcp", "/p/small/mcp"):
                    async with http.post(url + path, json={}, headers=headers) as answer:
                        assert (answer.status, (await answer.json())["content"]["code"]) == (status, code)
            async with http.post(f"{url}/mcp", data=b"x" * 5000, headers=right) as answer:
                assert answer.status == 413

    play(tmp_path, scene, max_body_bytes=4096)


@BOTH
def test_a_call_that_is_cancelled_is_cancelled_on_the_server(tmp_path: Path, mode: str) -> None:
    calls = tmp_path / "calls"

    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            call = asyncio.create_task(client.call_tool("hang", {}))
            await until(lambda: count(calls, "call hang") == 1)
            call.cancel()
            await until(lambda: count(calls, "cancelled") == 1)

    play(tmp_path, scene, odd("a", "--calls", str(calls)))


def count(path: Path, line: str) -> int:
    return path.read_text().splitlines().count(line) if path.exists() else 0


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():
            await asyncio.sleep(0.02)


@BOTH
def test_the_header_names_the_session_and_so_its_own_copy_of_a_server(tmp_path: Path, mode: str) -> None:
    async def pid(url: str, session: str) -> str:
        async with Connected(f"{url}/mcp", mode, **{"X-AgentDock-Session": session}) as client:
            return text_of(await client.call_tool("pid", {}))

    async def scene(url: str) -> None:
        first = await pid(url, "s1")
        assert await pid(url, "s1") == first
        assert await pid(url, "s2") != first

    play(tmp_path, scene, replace(odd("a", "--tools", "pid"), serving=Serving(share="session")))


def test_the_end_of_a_connection_ends_its_own_copy_of_a_server(tmp_path: Path) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", "legacy") as client:
            pid = int(text_of(await client.call_tool("pid", {})))
            assert Path(f"/proc/{pid}").exists()
        await until(lambda: not Path(f"/proc/{pid}").exists())

    play(tmp_path, scene, replace(odd("a", "--tools", "pid"), serving=Serving(share="session")))


@BOTH
def test_what_a_server_declares_of_its_tools_and_results_is_passed_on(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            rich, plain = (await client.list_tools()).tools
            assert rich.title == "A rich tool"
            assert rich.output_schema is not None
            assert rich.output_schema["required"] == ["text"]
            assert rich.annotations is not None
            assert (rich.annotations.title, rich.annotations.read_only_hint) == ("Rich", True)
            assert rich.meta == {"odd/colour": "green", "agentdock/id": "a.rich"}
            assert (plain.title, plain.output_schema, plain.annotations) == (None, None, None)
            result = await client.call_tool("rich", {"text": "é"})
            assert result.structured_content == {"text": "é"}
            assert result.meta is not None
            assert result.meta["odd/weight"] == 3

    play(tmp_path, scene, odd("a", "--tools", "rich,echo"))


@BOTH
def test_an_image_comes_as_it_was_sent(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            (block,) = (await client.call_tool("image", {})).content
            assert isinstance(block, ImageContent)
            assert (block.mime_type, base64.b64decode(block.data)[:4]) == ("image/png", b"\x89PNG")

    play(tmp_path, scene, odd("a", "--tools", "image"))


@BOTH
def test_the_run_of_a_call_is_told_by_header_or_meta(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode, **{"X-AgentDock-Run": "by header"}) as client:
            await client.call_tool("echo", {})
        async with Connected(f"{url}/mcp", mode) as client:
            await client.call_tool("echo", {}, meta={"agentdock/run": "by meta"})

    play(tmp_path, scene)
    calls = [json.loads(line) for line in (tmp_path / CALLS_FILE).read_text().splitlines()]
    assert [call["run"] for call in calls] == ["by header", "by meta"]


@BOTH
def test_structured_results_that_are_no_objects_are_only_for_clients_that_know_them(tmp_path: Path, mode: str) -> None:
    async def scene(url: str) -> None:
        async with Connected(f"{url}/mcp", mode) as client:
            (tool,) = (await client.list_tools()).tools
            result = await client.call_tool("numbers", {})
            assert text_of(result) == "[1, 2]"
            if mode == "legacy":
                assert (tool.output_schema, result.structured_content) == (None, None)
            else:
                assert (tool.output_schema, result.structured_content) == ({"type": "array"}, [1, 2])

    play(tmp_path, scene, ServerSpec(name="a", command=sys.executable, args=(str(ODD.with_name("plain.py")),)))
