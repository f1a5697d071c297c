"""The engine client against a server that misbehaves, byte by byte."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import TypeVar

import pytest

from agentrl.engine import Canary, WeightSource
from agentrl.engine.client import BACKOFF_SECONDS, EngineClient, EngineUnavailable, seconds_of
from agentrl.errors import ConfigError, ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

GOOD = {
    "token_ids": [4, 5, 6],
    "logprobs": [-0.1, -0.2, -3],
    "version_spans": [[0, 2, 1], [2, 3, 2]],
    "finish_reason": "length",
}
HANG = None
T = TypeVar("T")


def http(status: int, body: object, *headers: str) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f"HTTP/1.1 {status} X", f"Content-Length: {len(raw)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + raw


def error(status: int, kind: str = "x", message: str = "why", *headers: str) -> bytes:
    return http(status, {"error": {"type": kind, "message": message}}, *headers)


CUT = http(200, GOOD)[:-20]


class Odd:
    """Answers request after request with what it was given, the last one for ever; a cut answer closes."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.times: list[float] = []
        self.requests: list[dict] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next((int(x[15:]) for x in head.decode().split("\r\n") if x.startswith("Content-Length:")), 0)
                self.requests.append(json.loads(await reader.readexactly(length) or b"{}"))
                self.times.append(time.monotonic())
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is HANG:
                    await asyncio.sleep(60)
                writer.write(answer or b"")
                await writer.drain()
                if answer is not None and (not answer or answer == CUT):
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def opened(odd: Odd) -> AsyncIterator[EngineClient]:
    server = await asyncio.start_server(odd.serve, "127.0.0.1", 0)
    client = EngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        server.close()


async def generate(client: EngineClient, deadline: float = 5.0) -> Completion:
    return await client.generate(
        [1, 2, 3], sampling=Sampling(max_new_tokens=4, stop_token_ids=(9,)), session="s", deadline_seconds=deadline
    )


def ask(odd: Odd, deadline: float = 5.0) -> Completion:
    return play(odd, lambda client: generate(client, deadline))


def play(odd: Odd, scene: Callable[[EngineClient], Awaitable[T]]) -> T:
    async def main() -> T:
        async with opened(odd) as client:
            return await scene(client)

    return asyncio.run(main())


def test_a_good_answer_is_the_completion_and_the_request_carries_everything() -> None:
    odd = Odd(http(200, GOOD))
    completion = ask(odd)
    assert (completion.token_ids, completion.logprobs) == ([4, 5, 6], [-0.1, -0.2, -3])
    assert [(s.start, s.end, s.version) for s in completion.version_spans] == [(0, 2, 1), (2, 3, 2)]
    assert completion.finish_reason == "length"
    assert completion.service.startswith("http://127.0.0.1:")
    (request,) = odd.requests
    assert request["token_ids"] == [1, 2, 3]
    assert request["session"] == "s"
    assert request["deadline_seconds"] == 5.0
    assert request["sampling"]["stop_token_ids"] == [9]


@pytest.mark.parametrize("lost", [error(500), b"", CUT, error(502)], ids=["500", "closed", "cut", "502"])
def test_a_lost_request_is_sent_once_more_after_a_back_off(lost: bytes) -> None:
    odd = Odd(lost, http(200, GOOD))
    assert ask(odd).token_ids == [4, 5, 6]
    assert odd.requests[0] == odd.requests[1]
    assert odd.times[1] - odd.times[0] >= BACKOFF_SECONDS


def test_an_engine_that_always_fails_is_asked_twice_and_named() -> None:
    odd = Odd(error(500, message="out of memory"))
    with pytest.raises(EngineError, match=r"engine http://127\.0\.0\.1:\d+/generate answered 500: out of memory"):
        ask(odd)
    assert len(odd.requests) == 2


def test_nobody_listening_is_an_error_that_names_the_address() -> None:
    async def main() -> None:
        client = EngineClient("http://127.0.0.1:9")
        try:
            await generate(client)
        finally:
            await client.close()

    with pytest.raises(EngineUnavailable, match=r"127\.0\.0\.1:9"):
        asyncio.run(main())


def test_something_that_is_no_url_names_the_setting() -> None:
    async def main() -> None:
        client = EngineClient("localhost8000")
        try:
            await generate(client)
        finally:
            await client.close()

    with pytest.raises(EngineError, match="--engine_url"):
        asyncio.run(main())


@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_is_waited_for(status: int) -> None:
    odd = Odd(error(status, "busy", "later", "Retry-After: 1"), http(200, GOOD))
    assert ask(odd).token_ids == [4, 5, 6]
    assert odd.times[1] - odd.times[0] >= 1.0


def test_a_retry_after_beyond_the_deadline_is_not_waited_for() -> None:
    odd = Odd(error(429, "busy", "later", "Retry-After: 60"), http(200, GOOD))
    begun = time.monotonic()
    with pytest.raises(EngineError, match="too short to retry"):
        ask(odd, deadline=2.0)
    assert time.monotonic() - begun < 1.0
    assert len(odd.requests) == 1


@pytest.mark.parametrize("value", ["Wed, 21 Oct 2015 07:28:00 GMT", "soon", "", "-3"])
def test_a_retry_after_in_the_past_or_unreadable_is_the_usual_back_off(value: str) -> None:
    odd = Odd(error(429, "busy", "later", f"Retry-After: {value}"), http(200, GOOD))
    assert ask(odd).token_ids == [4, 5, 6]
    assert BACKOFF_SECONDS <= odd.times[1] - odd.times[0] < 1.5


def test_a_retry_after_as_a_date_is_seconds_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 27 < (seconds_of(date) or 0) <= 30


def test_a_prompt_too_long_is_not_sent_again() -> None:
    odd = Odd(error(400, "context_too_long", "300 tokens, 256 fit"))
    with pytest.raises(ContextTooLong, match="300 tokens, 256 fit"):
        ask(odd)
    assert len(odd.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_address_names_the_setting_and_is_not_asked_again(status: int) -> None:
    odd = Odd(http(status, b"<html>nginx</html>"))
    with pytest.raises(ConfigError, match=rf"--engine_url: .*{status}.*nginx"):
        ask(odd)
    assert len(odd.requests) == 1


@pytest.mark.parametrize("status", [400, 422, 302, 504])
def test_other_refusals_are_not_asked_again(status: int) -> None:
    odd = Odd(error(status, "bad_sampling", "top_p is 3"))
    with pytest.raises(EngineError, match="top_p is 3"):
        ask(odd)
    assert len(odd.requests) == 1


def test_a_server_that_never_answers_costs_the_deadline_and_only_that_request() -> None:
    async def scene(client: EngineClient) -> tuple[BaseException | Completion, ...]:
        begun = time.monotonic()
        answers = await asyncio.gather(generate(client, 0.5), generate(client, 0.5), return_exceptions=True)
        assert time.monotonic() - begun < 1.5
        return tuple(answers)

    first, second = play(Odd(HANG, http(200, GOOD)), scene)
    failed, fine = (first, second) if isinstance(first, BaseException) else (second, first)
    assert isinstance(failed, EngineError)
    assert "no answer within 0.5 s" in str(failed)
    assert isinstance(fine, Completion)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "empty"),
        (b"<html>gateway</html>", "not JSON.*<html>gateway"),
        (b'{"token_ids": [4, 5', r"not JSON.*\[4, 5"),
        (b"[]", "not an object"),
        (b'"x"', "not an object"),
    ],
    ids=["empty", "html", "cut json", "list", "string"],
)
def test_a_body_that_is_no_completion_is_an_error_with_its_first_bytes(raw: bytes, says: str) -> None:
    with pytest.raises(EngineError, match=says):
        ask(Odd(http(200, raw)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"logprobs": None}, "no logprobs"),
        ({"logprobs": [-0.1, -0.2]}, "2 logprobs for 3 tokens"),
        ({"logprobs": [-0.1, float("nan"), -3.0]}, "not finite"),
        ({"logprobs": [-0.1, float("-inf"), -3.0]}, "not finite"),
        ({"logprobs": [-0.1, None, -3.0]}, "not finite"),
        ({"token_ids": [], "logprobs": [], "version_spans": []}, "token_ids"),
        ({"token_ids": [1, "2", 3]}, "token_ids"),
        ({"version_spans": None}, "version_spans"),
        ({"version_spans": [[0, 2, 1]]}, "end at 2"),
        ({"version_spans": [[0, 2, 1], [1, 3, 2]]}, "do not cover"),
        ({"version_spans": [[0, 2, 1], [2, 3, "b"]]}, "version_spans"),
        ({"finish_reason": None}, "finish_reason"),
    ],
)
def test_a_completion_that_training_could_not_trust_is_an_error(change: dict, says: str) -> None:
    odd = Odd(http(200, {**GOOD, **change}))
    with pytest.raises(EngineError, match=f"{says}.*the answer begins"):
        ask(odd)
    assert len(odd.requests) == 1


def test_an_update_sends_version_path_and_canary() -> None:
    odd = Odd(http(200, {"version": 3, "canary_difference": 1e-6}))
    canary = Canary(token_ids=(1, 2), logprobs=(-0.5,), tolerance=1e-4)
    confirmation = play(odd, lambda client: client.update_weights(3, WeightSource(path="/w/v3", canary=canary)))
    assert (confirmation.version, confirmation.canary_difference) == (3, 1e-6)
    assert odd.requests == [
        {"version": 3, "path": "/w/v3", "canary": {"token_ids": [1, 2], "logprobs": [-0.5], "tolerance": 1e-4}}
    ]


def test_an_update_acknowledged_without_the_version_moving_is_an_error() -> None:
    odd = Odd(http(200, {"version": 2, "canary_difference": None}))
    with pytest.raises(WeightsError, match="given version 3 and serves 2"):
        play(odd, lambda client: client.update_weights(3, WeightSource(path="/w")))
