"""The gateway over real HTTP and real server processes: shapes, status codes, who is let in, what it tells."""

import asyncio
import base64
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from agentdock.calllog import CALLS_FILE
from agentdock.config import DockConfig, GatewayOptions, Profile
from agentdock.discovery import RunningGateway, Token, TokenProblem, announce, find_token, own_token, withdraw
from agentdock.dock import Dock
from agentdock.gateway.app import CannotListen, serving
from agentdock.spec import ServerSpec, Serving

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
SECRET = "a-token-of-the-tests"


def odd(name: str, *args: str, aliases: tuple[str, ...] = ()) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=("-S", str(ODD), *args), serving=Serving(aliases=aliases))


class Client:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url

    async def __call__(self, method: str, path: str, **options: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {SECRET}"} | options.pop("headers", {})
        async with self.http.request(method, self.url + path, headers=headers, **options) as response:
            kind = response.content_type
            return response.status, await (response.json() if kind == "application/json" else response.text())


def play(
    tmp_path: Path, scene: Callable[[Client, Dock], Awaitable[None]], *servers: ServerSpec, **options: Any
) -> None:
    async def main() -> None:
        profiles = {
            "default": Profile(name="default"),
            "small": Profile(name="small", servers=("a",), tools=("*.echo",)),
        }
        config = DockConfig(
            servers=servers or (odd("a"),), profiles=profiles, gateway=GatewayOptions(port=0, **options)
        )
        dock = Dock(config, state_dir=tmp_path)
        try:
            await dock.start()
            async with serving(dock, token=Token(value=SECRET, file=None)) as url, aiohttp.ClientSession() as http:
                await scene(Client(http, url), dock)
        finally:
            await dock.close()

    asyncio.run(main())


def test_the_listings_have_the_references_shapes(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        assert await ask("GET", "/mcpapi/servers") == (200, {"servers": ["a", "b"]})
        status, body = await ask("GET", "/mcpapi/tools")
        functions = [tool["function"] for tool in body["tools"]]
        assert (status, [f["name"] for f in functions]) == (200, ["a.echo", "b.echo", "b.fail"])
        assert functions[0]["parameters"]["properties"] == {"text": {"type": "string"}}
        status, body = await ask("GET", "/mcpapi/server/b/tools")
        assert (body["server"], [t["function"]["name"] for t in body["tools"]]) == ("b", ["echo", "fail"])
        status, body = await ask("GET", "/mcpapi/server/x/tools")
        assert (status, body["content"]["code"]) == (404, "unknown_server")
        listed = (await ask("GET", "/list_tools"))[1]
        assert [tool["function"]["name"] for tool in listed] == ["a_echo", "b_echo", "fail"]
        for name in ("a_echo", "a.echo"):
            assert (await ask("POST", f"/mcpapi/tool/{name}", json={"text": "x"}))[1]["content"] == "x"
        assert (await ask("GET", "/p/small/tools?format=anthropic"))[1]["tools"][0]["name"] == "echo"
        assert (await ask("GET", "/tools?format=mcp"))[1]["tools"][2]["inputSchema"]["type"] == "object"
        assert (await ask("GET", "/tools?format=xml"))[0] == 400
        assert (await ask("GET", "/mcpapi/tools?profile=large"))[0] == 404
        assert (await ask("GET", "/v1/servers"))[1]["servers"][0]["state"] == "ready"

    play(tmp_path, scene, odd("a", "--tools", "echo"), odd("b", "--tools", "echo,fail"))


def test_a_call_brings_its_text_unchanged_and_every_failure_its_own_status(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        assert await ask("POST", "/mcpapi/tool/a.echo", json={"text": "42"}) == (
            200,
            {"status": "success", "content": "42"},
        )
        for path, options, status, code in (
            ("a.fail", {"json": {"text": "this"}}, 422, "tool_error"),
            ("a.nothing", {"json": {}}, 404, "unknown_tool"),
            ("a.die", {"json": {}}, 502, "server_died"),
            ("a.hang", {"json": {}, "headers": {"X-AgentDock-Timeout": "0.2"}}, 504, "timeout"),
            ("a.echo", {"json": {}, "headers": {"X-AgentDock-Timeout": "soon"}}, 400, "bad_request"),
            ("a.echo", {"data": b"{"}, 400, "bad_request"),
            ("a.echo", {"json": [1]}, 400, "bad_request"),
            ("a.echo", {"data": b"x" * 5000}, 413, "too_large"),
        ):
            answer = await ask("POST", f"/mcpapi/tool/{path}", **options)
            assert (answer[0], answer[1]["status"], answer[1]["content"]["code"]) == (status, "error", code), path
            assert answer[1]["content"]["error"]
        assert (await ask("POST", "/mcpapi/tool/a.echo", json={"text": "back"}))[1]["content"] == "back"
        assert (await ask("GET", "/no/such/path"))[1]["content"]["code"] == "not_found"
        assert (await ask("GET", "/call_tool"))[0] == 405

    play(tmp_path, scene, max_body_bytes=4096)


def test_a_tool_call_of_a_chat_is_answered_by_a_message_of_role_tool(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "echo", "arguments": '{"text": "x"}'}}
        assert await ask("POST", "/call_tool", json=call) == (
            200,
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
        )
        call["function"] = {"name": "fail", "arguments": "{}"}
        status, body = await ask("POST", "/call_tool", json=call)
        assert (status, body["tool_call_id"], body["content"]["code"]) == (422, "c1", "tool_error")
        assert (await ask("POST", "/call_tool", json=call | {"function": {"name": "fail", "arguments": "{"}}))[0] == 400
        hang = {"function": {"name": "hang", "arguments": {}}, "timeout_seconds": 0.2}
        assert (await ask("POST", "/call_tool", json=hang))[0] == 504

    play(tmp_path, scene)


@pytest.mark.parametrize("by_config", [True, False])
def test_the_old_error_form_is_had_by_header_or_by_configuration(tmp_path: Path, by_config: bool) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        headers = {} if by_config else {"X-AgentDock-Legacy-Errors": "1"}
        for tool, code in (("a.none", 404), ("a.fail", 422)):
            status, body = await ask("POST", f"/mcpapi/tool/{tool}", json={}, headers=headers)
            assert (status, body["status_code"], body["headers"]) == (200, code, None)
            assert body["detail"]
        off = {"X-AgentDock-Legacy-Errors": "0"} if by_config else {}
        assert (await ask("POST", "/mcpapi/tool/a.none", json={}, headers=off))[0] == 404
        denied = await ask("POST", "/mcpapi/tool/a.none", json={}, headers=headers | {"Authorization": ""})
        assert denied[0] == 401

    play(tmp_path, scene, legacy_errors=by_config)


def test_only_who_has_the_token_is_let_in_and_the_refusal_names_the_ways(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        for given in ("", "Bearer", "Bearer wrong", f"Basic {SECRET}", f"Bearer {SECRET}x", "Bearer é"):
            for path in ("/mcpapi/servers", "/metrics", "/v1/servers", "/no/such/path"):
                status, body = await ask("GET", path, headers={"Authorization": given})
                assert (status, body["content"]["code"]) == (401, "unauthorized")
        for way in ("--mcp_auth_token", "AGENTDOCK_TOKEN"):
            assert way in body["content"]["error"]
        assert SECRET not in body["content"]["error"]

    with caplog.at_level(logging.DEBUG):
        play(tmp_path, scene)
    assert SECRET not in caplog.text


def test_other_hosts_and_origins_are_refused_unless_they_are_allowed(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        async def status(**headers: str) -> int:
            return (await ask("GET", "/mcpapi/servers", headers=headers))[0]

        assert await status(Host="evil.example") == 403
        assert await status(Host="10.1.2.3:80") == 403
        assert await status(Host="dock.example:8000") == 200
        assert await status(Host="[::1]:8000") == 200
        assert await status(Origin="http://evil.example") == 403
        assert await status(Origin="null") == 403
        assert await status(Origin=ask.url) == 200
        assert await status(Origin="http://page.example") == 200
        async with ask.http.options(ask.url + "/mcp", headers={"Origin": "http://page.example"}) as answer:
            assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "http://page.example")
        async with ask.http.get(ask.url + "/livez") as answer:
            assert "Access-Control-Allow-Origin" not in answer.headers
        async with ask.http.options(ask.url + "/mcp", headers={"Origin": "http://evil.example"}) as answer:
            assert answer.status == 403

    play(tmp_path, scene, allowed_hosts=("dock.example",), allowed_origins=("http://page.example",))


def test_health_is_red_with_reasons_and_metrics_count_calls(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        nobody = {"Authorization": ""}
        assert (await ask("GET", "/livez", headers=nobody))[0] == 200
        status, body = await ask("GET", "/readyz")
        assert status == 503
        assert "no-such-command" in body["reasons"][0]
        assert (await ask("GET", "/readyz", headers=nobody))[1]["reasons"] == ["bad: failed"]
        await ask("POST", "/mcpapi/tool/a.echo", json={})
        text = (await ask("GET", "/metrics"))[1]
        assert 'agentdock_calls_total{tool="a.echo",outcome="ok"} 1.0' in text
        assert 'agentdock_server_up{server="bad"} 0.0' in text
        assert "# TYPE agentdock_call_seconds histogram" in text

    play(tmp_path, scene, odd("a"), ServerSpec(name="bad", command="no-such-command"))


def test_a_caller_that_goes_away_ends_its_call(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    async def scene(ask: Client, dock: Dock) -> None:
        with pytest.raises(asyncio.TimeoutError):
            await ask("POST", "/mcpapi/tool/a.hang", json={}, timeout=aiohttp.ClientTimeout(total=0.5))
        while "cancelled" not in calls.read_text():
            await asyncio.sleep(0.02)

    play(tmp_path, scene, odd("a", "--calls", str(calls)))


def test_a_port_in_use_is_a_clear_error(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        port = int(ask.url.rpartition(":")[2])
        other = Dock(DockConfig(servers=(), gateway=GatewayOptions(port=port)), state_dir=tmp_path)
        with pytest.raises(CannotListen, match=rf"cannot listen on 127.0.0.1:{port}: .*--port"):
            async with serving(other, token=Token(value=SECRET, file=None)):
                pass

    play(tmp_path, scene)


def test_a_token_is_made_once_private_and_found_by_programs_of_the_same_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AGENTDOCK_TOKEN", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "user"))
    state_dir = tmp_path / "state"
    token = own_token(state_dir)
    assert token.file is not None
    assert own_token(state_dir) == token
    assert token.file.stat().st_mode & 0o777 == 0o600
    assert len(token.value) >= 40
    assert token.value not in repr(token)
    gateway = RunningGateway(url="http://127.0.0.1:8123", pid=os.getpid(), token_file=str(token.file))
    paths = announce(gateway, state_dir)
    assert token.value not in "".join(path.read_text() for path in paths)
    assert find_token("http://localhost:8123/mcpapi") == token.value
    assert find_token("http://localhost:8124/mcpapi") is None
    assert find_token("http://dock.example:8123/mcpapi") is None
    withdraw(paths, os.getpid())
    assert find_token("http://localhost:8123/mcpapi") is None
    token.file.chmod(0o644)
    with pytest.raises(TokenProblem, match="chmod 600"):
        own_token(state_dir)
    monkeypatch.setenv("AGENTDOCK_TOKEN", "given")
    assert own_token(state_dir) == Token(value="given", file=None)
    assert find_token("http://dock.example:8123/mcpapi") == "given"


def test_a_session_that_is_ended_loses_its_own_servers_and_no_other(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        async def pid(session: str) -> int:
            headers = {"X-AgentDock-Session": session}
            return int((await ask("POST", "/mcpapi/tool/pid", json={}, headers=headers))[1]["content"])

        first, other = await pid("run/1"), await pid("run/2")
        assert await ask("DELETE", "/mcpapi/session/run%2F1") == (200, {"session": "run/1", "ended": 1})
        assert await ask("DELETE", "/mcpapi/session/run/1") == (200, {"session": "run/1", "ended": 0})
        assert await pid("run/2") == other
        assert await pid("run/1") != first
        assert (await ask("DELETE", "/mcpapi/session/run/2", headers={"Authorization": ""}))[0] == 401
        assert await pid("run/2") == other

    spec = replace(odd("a", "--tools", "pid"), serving=Serving(share="session"))
    play(tmp_path, scene, spec)


def test_the_answer_says_what_was_put_right_in_the_arguments(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        status, body = await ask("POST", "/mcpapi/tool/list", json={"items": "[1, 2]"})
        assert (status, body["content"]) == (200, '{"items": [1, 2]}')
        (note,) = body["notes"]
        assert "items" in note
        assert "notes" not in (await ask("POST", "/mcpapi/tool/list", json={"items": [1, 2]}))[1]
        status, body = await ask("POST", "/mcpapi/tool/fail", json={"text": 7})
        assert (status, body["content"]["code"], len(body["notes"])) == (422, "tool_error", 1)

    play(tmp_path, scene, odd("a", "--tools", "list,fail"))


def test_the_run_of_a_call_is_told_by_a_header(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        headers = {"X-AgentDock-Run": "run-7", "X-AgentDock-Session": "s1"}
        await ask("POST", "/mcpapi/tool/a.echo", json={}, headers=headers)
        await ask("POST", "/mcpapi/tool/a.echo", json={})

    play(tmp_path, scene)
    calls = [json.loads(line) for line in (tmp_path / CALLS_FILE).read_text().splitlines()]
    assert [(call.get("run", ""), call.get("session", "")) for call in calls] == [("run-7", "s1"), ("", "")]


def test_images_are_parts_of_a_chat_message_with_their_own_kind(tmp_path: Path) -> None:
    async def scene(ask: Client, dock: Dock) -> None:
        content = (await ask("POST", "/mcpapi/tool/image", json={}))[1]["content"]
        assert [part["type"] for part in content] == ["image_url"]
        kind, _, picture = content[0]["image_url"]["url"].partition(";base64,")
        assert (kind, base64.b64decode(picture)[:8]) == ("data:image/png", b"\x89PNG\r\n\x1a\n")
        call = {"id": "c1", "type": "function", "function": {"name": "image", "arguments": "{}"}}
        assert (await ask("POST", "/call_tool", json=call))[1]["content"] == content

    play(tmp_path, scene, odd("a", "--tools", "image"))
