"""One connection to a tool server that speaks MCP: the greeting, the list of tools, and calls over it.

The SDK is imported inside functions: it takes half a second that only a process with tool servers should pay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentdock.calls import (
    CallOutcome,
    CallRefused,
    CallTimeout,
    ProgressListener,
    ServerDied,
    ToolInfo,
    call_outcome,
    tool_info,
)
from agentdock.wire import FATE_KEY, Fate, Wire

if TYPE_CHECKING:
    from mcp.client.session import ClientSession
    from mcp.shared.exceptions import MCPError

SESSION_META_KEY = "agentdock/session"
MAX_PAGES = 1000
SETTLE_SECONDS = 0.5


class NotSent(Exception):
    """The request cannot have been carried out, so that it may be sent again; the text says why."""


class GreetingFailed(Exception):
    """The server is there but does not talk as expected."""


@dataclass(slots=True)
class Link:
    """An open connection to the server named ``server``; while ``suspect``, nobody should call over it."""

    server: str
    session: ClientSession
    wire: Wire
    since: float
    redact: Callable[[str], str] = str
    num_calls: int = 0
    suspect: bool = False
    checking: bool = False

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_seconds: float,
        limit_seconds: float,
        session: str = "",
        on_progress: ProgressListener | None = None,
    ) -> CallOutcome:
        """Call ``tool`` once within ``timeout_seconds``, what is left of ``limit_seconds``.

        Raises ``CallTimeout``, ``CallRefused``, ``ServerDied`` (outcome unknown) or ``NotSent``.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import CallToolRequest, CallToolRequestParams, CallToolResult
        from pydantic import ValidationError

        meta: Any = {SESSION_META_KEY: session} if session else None
        params = CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=meta)
        self.num_calls += 1
        try:
            result = await self.session.send_request(
                CallToolRequest(params=params),
                CallToolResult,
                request_read_timeout_seconds=max(timeout_seconds, 0.001),
                progress_callback=on_progress,
            )
        except MCPError as error:
            raise self._problem(error, tool, limit_seconds) from None
        except ValidationError as error:
            raise CallRefused(
                self.server,
                f"tool server {self.server!r} sent a result of {tool!r} that is not MCP: {error.errors()[0]['msg']}",
            ) from None
        finally:
            self.num_calls -= 1
        return call_outcome(result)

    def _problem(self, error: MCPError, tool: str, limit_seconds: float) -> Exception:
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        code, text, name = error.error.code, self.redact(error.error.message), self.server
        fate = fate_of(error)
        if code == REQUEST_TIMEOUT:
            told = f"{tool!r} on tool server {name!r} gave no answer within {limit_seconds:g} s and was cancelled"
            return CallTimeout(name, told)
        if fate in (Fate.NOT_SENT, Fate.SESSION_LOST):
            return NotSent(text)
        if fate is Fate.UNKNOWN:
            return ServerDied(name, f"tool server {name!r} {text} during a call to {tool!r}")
        if code == CONNECTION_CLOSED and fate is None:
            how = self.wire.ended.result() if self.wire.ended.done() else "was stopped"
            if self.wire.pid is None and not self.wire.ended.done():
                how = f"ended the connection: {text}"
            return ServerDied(name, f"tool server {name!r} {how} during a call to {tool!r}")
        return CallRefused(name, f"tool server {name!r} refused {tool!r}: {text}")

    async def trouble(self, timeout_seconds: float) -> str:
        """Why the connection is of no more use; empty if the server answers anything at all in time."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import REQUEST_TIMEOUT, ListToolsRequest, ListToolsResult

        try:
            await self.session.send_request(
                ListToolsRequest(), ListToolsResult, request_read_timeout_seconds=timeout_seconds
            )
        except MCPError as error:
            if error.error.code == REQUEST_TIMEOUT:
                return f"gave no sign of life for {timeout_seconds:g} s and was killed"
            return error.error.message if fate_of(error) not in (None, Fate.REFUSED) else ""
        return ""

    async def settle(self) -> None:
        """Leave requests under way a moment to tell that they were never sent."""
        for _ in range(int(SETTLE_SECONDS / 0.01)):
            if not self.num_calls:
                return
            await asyncio.sleep(0.01)


def fate_of(error: MCPError) -> Fate | None:
    """What our own HTTP client says became of the request; None if the error is the server's or the SDK's."""
    data = error.error.data
    return Fate(data[FATE_KEY]) if isinstance(data, dict) and FATE_KEY in data else None


async def greet(
    session: ClientSession, wire: Wire, idempotent_tools: frozenset[str], *, timeout_seconds: float
) -> tuple[ToolInfo, ...]:
    """Agree on a protocol and read the tools, unless ``wire`` ends. Raises ``GreetingFailed`` and ``TimeoutError``."""
    greeting = asyncio.create_task(_greet(session, idempotent_tools))
    try:
        async with asyncio.timeout(timeout_seconds):
            await asyncio.wait({greeting, wire.ended}, return_when=asyncio.FIRST_COMPLETED)
            if not greeting.done():
                raise GreetingFailed(wire.ended.result())
            return await greeting
    finally:
        greeting.cancel()


async def _greet(session: ClientSession, idempotent_tools: frozenset[str]) -> tuple[ToolInfo, ...]:
    from mcp.shared.exceptions import MCPError
    from pydantic import ValidationError

    try:
        try:
            await session.discover()
        except (MCPError, ValidationError, RuntimeError):
            await session.initialize()
        return await list_tools(session, idempotent_tools)
    except MCPError as error:
        text = error.error.message
        raise GreetingFailed(text if fate_of(error) else f"does not speak MCP as expected: {text}") from None
    except (ValidationError, RuntimeError) as error:
        raise GreetingFailed(f"does not speak MCP as expected: {error}") from None


async def list_tools(session: ClientSession, idempotent_tools: frozenset[str]) -> tuple[ToolInfo, ...]:
    """All pages of the server's list; a cursor that comes again ends it."""
    from mcp_types import ListToolsRequest, ListToolsResult, PaginatedRequestParams

    tools: dict[str, ToolInfo] = {}
    seen: set[str | None] = set()
    cursor: str | None = None
    while cursor not in seen and len(seen) < MAX_PAGES:
        seen.add(cursor)
        page = await session.send_request(
            ListToolsRequest(params=PaginatedRequestParams(cursor=cursor)), ListToolsResult
        )
        for tool in page.tools:
            tools.setdefault(tool.name, tool_info(tool, idempotent_tools))
        if page.next_cursor is None:
            break
        cursor = page.next_cursor
    return tuple(tools.values())
