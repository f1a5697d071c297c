"""An ASGI application served inside aiohttp: requests go in whole, answers come out as they are written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from aiohttp import web

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LEAVE_SECONDS = 1.0
EVENT_STREAM = "text/event-stream"
# The body has been read whole and unpacked, and the token is checked: the application has no business with it.
WITHHELD = ("content-length", "content-encoding", "transfer-encoding", "authorization")


async def answer_by(app: AsgiApp, request: web.Request, state: Mapping[str, Any]) -> web.StreamResponse:
    """What ``app`` answers to ``request``; it finds ``state`` in its scope.

    A caller that goes away is told to ``app`` by a message and does not cancel it: some callers close as soon as they
    have read what they wanted, and what began with that request must live on.
    """
    gone = asyncio.Event()
    answer = _Answer(request, gone)
    messages: list[Message] = [{"type": "http.request", "body": await request.read(), "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    serving = asyncio.ensure_future(app(_scope(request, state), receive, answer.send))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait({serving}, timeout=LEAVE_SECONDS)
        serving.cancel()
        raise
    return answer.response


class _Answer:
    """Takes the messages of an ASGI application. An answer of one message is sent whole, a longer one as it comes.

    Once the caller is ``gone``, what is still sent goes nowhere.
    """

    def __init__(self, request: web.Request, gone: asyncio.Event) -> None:
        self._request = request
        self._gone = gone
        self._status = 500
        self._headers: list[tuple[str, str]] = []
        self._stream: web.StreamResponse | None = None
        self.response: web.StreamResponse = web.Response(status=500)

    async def send(self, message: Message) -> None:
        if self._gone.is_set():
            return
        try:
            await self._take(message)
        except ConnectionError:
            self._gone.set()

    async def _take(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            if any(name.lower() == "content-type" and value.startswith(EVENT_STREAM) for name, value in self._headers):
                await self._open()
        elif message["type"] == "http.response.body":
            await self._body(message.get("body", b""), more=message.get("more_body", False))

    async def _body(self, body: bytes, *, more: bool) -> None:
        if self._stream is None and not more:
            self.response = web.Response(status=self._status, body=body)
            self._add_headers(self.response)
            return
        stream = self._stream or await self._open()
        if body:
            await stream.write(body)
        if not more:
            await stream.write_eof()

    async def _open(self) -> web.StreamResponse:
        self._stream = self.response = web.StreamResponse(status=self._status)
        self._add_headers(self._stream)
        await self._stream.prepare(self._request)
        return self._stream

    def _add_headers(self, response: web.StreamResponse) -> None:
        for name, value in self._headers:
            if name.lower() not in ("content-length", "connection"):
                response.headers.add(name, value)


def _scope(request: web.Request, state: Mapping[str, Any]) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": f"{request.version.major}.{request.version.minor}",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.partition("?")[0].encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        "headers": [
            (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
            for name, value in request.headers.items()
            if name.lower() not in WITHHELD
        ],
        "client": (request.remote or "", 0),
        "server": None,
        "state": dict(state),
    }
