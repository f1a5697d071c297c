"""A tool server that is reached over HTTP: streamable HTTP or the older SSE, with the official SDK.

Each way a request can fail becomes an answer of its own that says whether the server may have seen it. Otherwise one
failed request would end the SDK's whole connection, and a call that was never sent would not be sent again.

Import this where it is needed only: the SDK takes half a second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND

from agentdock.spec import Remote, ServerSpec
from agentdock.wire import FATE_KEY, Fate, Wire

SESSION_HEADER = "mcp-session-id"
MAX_EVENT_BYTES = 64 * 1024 * 1024
CLOSE_SECONDS = 1.0
NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
Failure = tuple[Fate, str]


@asynccontextmanager
async def remote_wire(spec: ServerSpec) -> AsyncIterator[Wire]:
    """Reach the server of a resolved ``spec``. Raises ``httpx2.HTTPError``, at times in an exception group."""
    assert spec.remote is not None
    remote = spec.remote
    ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(reason: str) -> None:
        if not ended.done():
            ended.set_result(reason)

    def sse_http(headers: Any = None, timeout: Any = None, auth: Any = None) -> HttpClient:
        return HttpClient(remote, spec.start_timeout_seconds, lost=end)

    if remote.sse:
        async with sse_client(remote.url, httpx_client_factory=sse_http) as (incoming, outgoing):
            yield Wire(incoming=incoming, outgoing=outgoing, ended=ended, kill=end)
        return
    async with (
        HttpClient(remote, spec.start_timeout_seconds) as http,
        streamable_http_client(remote.url, http_client=http, max_sse_event_size=MAX_EVENT_BYTES) as streams,
    ):
        incoming, outgoing = streams
        yield Wire(incoming=incoming, outgoing=outgoing, ended=ended, kill=end)


class HttpClient(httpx2.AsyncClient):
    """Waits for answers without a limit, as each call has its own deadline, and answers for a server that did not.

    ``lost``, given for SSE, is told of each failure: its requests have no answers that could, so the connection ends.
    """

    def __init__(self, remote: Remote, connect_seconds: float, *, lost: Callable[[str], None] | None = None) -> None:
        super().__init__(
            headers=dict(remote.headers),
            timeout=httpx2.Timeout(None, connect=connect_seconds),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
        )
        self._lost = lost

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "POST":
            return await self._post(request, **options)
        if request.method == "DELETE":
            request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), CLOSE_SECONDS)
        response = await super().send(request, **options)
        if self._lost is not None and isinstance(response.stream, httpx2.AsyncByteStream):
            response.stream = _EventStream(response.stream, self._lost)
        return response

    async def _post(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        try:
            response = await super().send(request, **options)
            if _is_json(response):
                await response.aread()
            failure = _failure_of(request, response)
        except httpx2.TransportError as error:
            return self._failed(request, 502, *_failure(error))
        if failure is None:
            return response
        await response.aclose()
        return self._failed(request, response.status_code, *failure)

    def _failed(self, request: httpx2.Request, status: int, fate: Fate, text: str) -> httpx2.Response:
        """A JSON-RPC error that takes the place of an answer. An unknown path is an unknown method, as for the SDK."""
        if self._lost is not None:
            self._lost(text)
        code = METHOD_NOT_FOUND if fate is Fate.REFUSED and status in (404, 405) else CONNECTION_CLOSED
        error = {"code": code, "message": text, "data": {FATE_KEY: fate}}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error}, request=request)


class _EventStream(httpx2.AsyncByteStream):
    """The body of an event stream; ``lost`` is told of its end."""

    def __init__(self, body: httpx2.AsyncByteStream, lost: Callable[[str], None]) -> None:
        self._body = body
        self._lost = lost

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._body:
                yield part
        except httpx2.TransportError as error:
            self._lost(_failure(error)[1])
            raise
        self._lost("closed the connection")

    async def aclose(self) -> None:
        await self._body.aclose()


def _failure(error: httpx2.TransportError) -> Failure:
    text = str(error) or type(error).__name__
    if isinstance(error, NEVER_SENT):
        return Fate.NOT_SENT, f"could not be reached: {text}"
    return Fate.UNKNOWN, f"broke the connection: {text}"


def _failure_of(request: httpx2.Request, response: httpx2.Response) -> Failure | None:
    """What an HTTP error means for the request; None if the answer is MCP's own."""
    status = response.status_code
    if status < 400:
        return None
    told = _told(response)
    text = f"answered with HTTP {status} {response.reason_phrase}" + (f": {told}" if told else "")
    if SESSION_HEADER in request.headers and (status == 404 or (status == 400 and "session" in (told or "").lower())):
        return Fate.SESSION_LOST, text
    if told is not None:
        return None
    if status in (401, 403):
        return Fate.REFUSED, f"{text}; check headers of the server's entry"
    return (Fate.UNKNOWN if status >= 500 else Fate.REFUSED), text


def _told(response: httpx2.Response) -> str | None:
    """The message of the JSON-RPC error in ``response``; None if there is none."""
    if not _is_json(response):
        return None
    try:
        return str(json.loads(response.content)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return None


def _is_json(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").lower().startswith("application/json")
