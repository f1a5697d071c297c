"""The engine's HTTP server: statuses, disconnects, shutdown, and chat for OpenAI clients."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from engine_cases import count_up, served, until

from agentrl.engine.scripted import Faults, ScriptedEngine
from agentrl.engine.server import serve, url_of
from agentrl.errors import ConfigError, RenderError
from agentrl.types import Message, Reply, Sampling, ToolCall, ToolSpec

SAMPLING = {"max_new_tokens": 4, "temperature": 0.0}
GENERATE = {"token_ids": [1, 2], "sampling": SAMPLING, "session": "s", "deadline_seconds": 5}


class Spelling:
    """One id per character; a reply that begins with ``@`` is a call."""

    stop_token_ids = (0,)

    def __init__(self) -> None:
        self.opened: list[tuple[Sequence[Message], Sequence[ToolSpec]]] = []

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        if messages[0]["role"] == "nobody":
            raise RenderError("no role nobody")
        self.opened.append((messages, tools))
        return [ord(c) for c in messages[-1]["content"]]

    def parse(self, token_ids: Sequence[int], *, finish_reason: str, prompt_ids: Sequence[int]) -> Reply:
        text = "".join(chr(token) for token in token_ids if token)
        if text.startswith("@"):
            return Reply(calls=(ToolCall(id="c1", name="add", arguments={"text": text[1:]}),))
        return Reply(content=text, reasoning="hm")


def echo(prompt_ids: Sequence[int], session: str, sampling: Sampling) -> list[int]:
    return [*prompt_ids, 0, 7]


Ask = Callable[..., Awaitable[tuple[int, Any]]]


def play(scene: Callable[[Ask, ScriptedEngine], Awaitable[None]], *, script=count_up, renderer=None, **engine) -> None:
    async def main() -> None:
        scripted = ScriptedEngine(script, **{"version": 0, **engine})
        async with served(scripted, renderer=renderer) as url, aiohttp.ClientSession() as session:

            async def ask(method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> tuple[int, Any]:
                data = raw if raw is not None else None if body is None else json.dumps(body).encode()
                async with session.request(method, url + path, data=data) as response:
                    return response.status, await response.json()

            await scene(ask, scripted)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("change", "kind", "says"),
    [
        ({"token_ids": []}, "bad_request", "token_ids"),
        ({"token_ids": [1, -1]}, "bad_request", "token_ids"),
        ({"token_ids": "abc"}, "bad_request", "token_ids"),
        ({"sampling": None}, "bad_sampling", "sampling"),
        ({"sampling": {}}, "bad_sampling", "max_new_tokens"),
        ({"sampling": {**SAMPLING, "repetition_penalty": 1.1}}, "bad_sampling", "repetition_penalty"),
        ({"sampling": {**SAMPLING, "temperature": -1}}, "bad_sampling", "temperature is -1"),
        ({"sampling": {**SAMPLING, "temperature": float("nan")}}, "bad_sampling", "temperature"),
        ({"sampling": {**SAMPLING, "top_p": 0}}, "bad_sampling", "top_p is 0"),
        ({"sampling": {**SAMPLING, "top_k": 1.5}}, "bad_sampling", "top_k is 1.5"),
        ({"sampling": {**SAMPLING, "seed": "x"}}, "bad_sampling", "seed"),
        ({"sampling": {**SAMPLING, "stop_token_ids": 3}}, "bad_sampling", "sampling"),
        ({"sampling": {**SAMPLING, "stop_token_ids": ["a"]}}, "bad_sampling", "stop_token_ids"),
        ({"sampling": {"max_new_tokens": 0}}, "bad_sampling", "max_new_tokens is 0"),
        ({"deadline_seconds": 0}, "bad_request", "deadline_seconds is 0"),
        ({"token_ids": [1] * 20}, "context_too_long", "20 prompt tokens"),
    ],
)
def test_a_request_that_cannot_be_served_is_a_400_that_says_why(change: dict, kind: str, says: str) -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        status, body = await ask("POST", "/generate", {**GENERATE, **change})
        assert (status, body["error"]["type"]) == (400, kind)
        assert says in body["error"]["message"]

    play(scene, max_context=16)


@pytest.mark.parametrize(
    ("path", "body", "kind", "says"),
    [
        (
            "/generate",
            {},
            "bad_request",
            ["deadline_seconds is missing", "token_ids is missing", "sampling is missing"],
        ),
        (
            "/generate",
            {**GENERATE, "sampling": {"temperature": -1, "top_p": 2, "penalty": 1, "stop_token_ids": 3}},
            "bad_sampling",
            ["penalty", "max_new_tokens is missing", "stop_token_ids is 3", "temperature is -1", "top_p is 2"],
        ),
        ("/update_weights", {"canary": 1}, "bad_request", ["version is None", "path is None", "canary must be"]),
    ],
)
def test_everything_wrong_with_a_request_is_told_at_once(path: str, body: dict, kind: str, says: list[str]) -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        status, answer = await ask("POST", path, body)
        assert (status, answer["error"]["type"]) == (400, kind)
        assert [what for what in says if what not in answer["error"]["message"]] == []

    play(scene)


def test_bodies_that_are_no_json_and_paths_that_are_no_routes_answer_json_too() -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        for raw in (b"", b"{", b"[]", b"\xff"):
            status, body = await ask("POST", "/generate", raw=raw)
            assert (status, body["error"]["type"]) == (400, "bad_request")
        assert (await ask("GET", "/nothing"))[0] == 404
        status, body = await ask("GET", "/generate")
        assert status == 405
        assert "GET /generate" in body["error"]["message"]

    play(scene)


def test_a_prompt_of_a_hundred_thousand_tokens_fits_the_body() -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        status, body = await ask("POST", "/generate", {**GENERATE, "token_ids": [151_000] * 200_000})
        assert status == 200
        assert body["prompt_tokens"] == 200_000

    play(scene)


def test_failures_deadlines_and_refused_weights_have_their_statuses() -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        engine.faults.fail = 1
        assert (await ask("POST", "/generate", GENERATE))[0] == 500
        engine.faults.hang = True
        status, body = await ask("POST", "/generate", {**GENERATE, "deadline_seconds": 0.1})
        assert (status, body["error"]["type"]) == (504, "deadline")
        engine.faults.refuse_canary = True
        status, body = await ask("POST", "/update_weights", {"version": 2, "path": "/w", "canary": None})
        assert (status, body["error"]["type"]) == (409, "weights_refused")
        for wrong in ({"version": -1, "path": "/w"}, {"version": 1}, {"version": 1, "path": "/w", "canary": {}}):
            assert (await ask("POST", "/update_weights", wrong))[0] == 400
        assert (await ask("GET", "/version")) == (200, {"version": 0, "model": "m"})

    play(scene)


def test_a_client_that_goes_away_frees_the_engine() -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        task = asyncio.create_task(ask("POST", "/generate", {**GENERATE, "deadline_seconds": 60}))

        async def running(number: int) -> bool:
            return (await engine.health()).running == number

        await until(lambda: running(1))
        task.cancel()
        await until(lambda: running(0))

    play(scene, faults=Faults(hang=True))


def test_it_stops_gracefully_and_does_not_wait_for_ever() -> None:
    async def main() -> None:
        engine = ScriptedEngine(count_up, version=0, faults=Faults(seconds_per_token=0.02))
        stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
        server = asyncio.create_task(
            serve(engine, model_name="m", on_ready=url.set_result, stop=stop, grace_seconds=0.6)
        )
        async with aiohttp.ClientSession() as session:
            address = await url
            post = session.post
            short = asyncio.create_task(read(post(f"{address}/generate", json=GENERATE)))
            endless = {**GENERATE, "sampling": {"max_new_tokens": 200}}
            long = asyncio.create_task(read(post(f"{address}/generate", json=endless)))
            await asyncio.sleep(0.04)
            stop.set()
            async with asyncio.timeout(4):
                await server
            assert len((await short)["token_ids"]) == 4
            with pytest.raises(aiohttp.ClientError):
                await long
        assert (await engine.health()).running == 0

    asyncio.run(main())


async def read(response: Any) -> Any:
    async with response as answer:
        return await answer.json()


def test_an_engine_on_every_address_is_known_by_the_name_of_its_machine() -> None:
    assert url_of("0.0.0.0", 80) == url_of("::", 80) == f"http://{socket.gethostname()}:80"
    assert url_of("::1", 80) == "http://[::1]:80"


def test_a_web_page_cannot_use_the_engine() -> None:
    async def main() -> None:
        engine = ScriptedEngine(count_up, version=0)
        async with served(engine) as url, aiohttp.ClientSession() as session:
            async with session.post(f"{url}/pause", headers={"Origin": "http://evil.example"}) as response:
                assert response.status == 403
            assert (await engine.health()).ready

    asyncio.run(main())


def test_a_port_in_use_names_the_option() -> None:
    async def main() -> None:
        engine = ScriptedEngine(count_up, version=0)
        async with served(engine) as url:
            port = int(url.rsplit(":", 1)[1])
            with pytest.raises(ConfigError, match=rf"--port: cannot listen on 127\.0\.0\.1:{port}"):
                await serve(engine, port=port, model_name="m", stop=asyncio.Event())

    asyncio.run(main())


def test_chat_answers_an_openai_request() -> None:
    renderer = Spelling()

    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        earlier = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
        tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
        messages = [{"role": "assistant", "tool_calls": [earlier]}, {"role": "user", "content": "hey"}]
        request = {"model": "m", "messages": messages, "tools": [tool], "temperature": 0, "max_tokens": 9}
        status, body = await ask("POST", "/v1/chat/completions", request)
        assert status == 200
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": "hey", "reasoning_content": "hm"}
        assert choice["finish_reason"] == "stop"
        assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
        (seen, tools) = renderer.opened[0]
        assert seen[0]["tool_calls"][0]["function"]["arguments"] == {"x": 1}
        assert [spec.name for spec in tools] == ["add"]

        request["messages"] = [{"role": "user", "content": "@1"}]
        _, body = await ask("POST", "/v1/chat/completions", request)
        (choice,) = body["choices"]
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        assert choice["message"]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"text": "1"}'}
        assert (await ask("GET", "/v1/models"))[1]["data"][0]["id"] == "m"

    play(scene, script=echo, renderer=renderer)


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "nobody", "content": ""}]}, 400, "no role nobody"),
        ({"stream": True}, 400, "stream"),
        ({"n": 2}, 400, "n = 2"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty"),
        ({"min_p": 0.1}, 400, "min_p"),
        ({"max_tokens": -1}, 400, "max_new_tokens"),
        ({"tools": [{}]}, 400, "tools"),
        ({"model": "other"}, 404, "'other'"),
    ],
)
def test_chat_refuses_what_it_would_have_to_ignore(change: dict, status: int, says: str) -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        request = {"messages": [{"role": "user", "content": "a"}], **change}
        seen, body = await ask("POST", "/v1/chat/completions", request)
        assert seen == status
        assert says in body["error"]["message"]

    play(scene, script=echo, renderer=Spelling())


def test_chat_without_a_template_says_so() -> None:
    async def scene(ask: Ask, engine: ScriptedEngine) -> None:
        status, body = await ask("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        assert status == 501
        assert "/generate" in body["error"]["message"]

    play(scene)
