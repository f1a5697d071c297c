"""One tool server kept alive: an owner task holds its connection, restarts it, and gives up after repeated failure.

The SDK is imported inside functions: it takes half a second that only a process with tool servers should pay.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from agentdock.calls import (
    CallOutcome,
    CallRefused,
    CallTimeout,
    ProgressListener,
    ServerDied,
    ServerFailed,
    StartFailed,
    ToolInfo,
    call_outcome,
    tool_info,
)
from agentdock.spec import MissingVariable, ServerSpec
from agentdock.stdio import Pipes, stdio_pipes

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

logger = logging.getLogger(__name__)

SESSION_META_KEY = "agentdock/session"
MAX_PAGES = 1000
TAIL_BYTES = 1500


class ServerState(StrEnum):
    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Back-off doubles from ``first`` to ``max``. A call that is answered, or ``stable_seconds`` up, clears it."""

    max_restarts: int = 3
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    stable_seconds: float = 60.0

    def backoff_seconds(self, restarts: int) -> float:
        return min(self.first_backoff_seconds * 2 ** (restarts - 1), self.max_backoff_seconds)


@dataclass(slots=True)
class _Link:
    session: ClientSession
    pipes: Pipes
    since: float


class Upstream:
    """A supervised stdio server. Callers live in other tasks and never touch the connection's life."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        log_path: Path | None = None,
        policy: RestartPolicy | None = None,
        on_failed: Callable[[ServerFailed], None] = lambda failure: None,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_changed`` is called after each change of state, when the tools may have changed too."""
        self.spec = spec
        self.state = ServerState.STOPPED
        self.reason = ""
        self.tools: tuple[ToolInfo, ...] = ()
        self.restarts = 0
        self.total_restarts = 0
        self._log_path = log_path
        self._policy = policy or RestartPolicy()
        self._on_failed = on_failed
        self._on_changed = on_changed
        self._link: _Link | None = None
        self._greeting: Pipes | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int | None:
        return self._link.pipes.pid if self._link else None

    async def start(self) -> None:
        """Start the server and read its tools; raise ``StartFailed`` with the reason and the end of its stderr."""
        if self._owner is None:
            self._stopping.clear()
            self._set_state(ServerState.STARTING)
            self._owner = asyncio.create_task(self._own(), name=f"tool server {self.name}")
            self._owner.add_done_callback(self._note_owner_end)
        while self.state is ServerState.STARTING:
            await self._changed.wait()
        if self.state is not ServerState.READY:
            raise StartFailed(self.name, self.reason or f"tool server {self.name!r} was stopped while it started")

    async def stop(self) -> None:
        """End the server and its process group; calls under way end with ``ServerDied``."""
        self._stopping.set()
        for check in self._checks:
            check.cancel()
        if self._greeting is not None:
            self._greeting.kill("was stopped while it started")
        if self._owner is not None:
            await self._owner
            self._owner = None
        if self.state is not ServerState.FAILED:
            self._set_state(ServerState.STOPPED)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_seconds: float,
        session: str = "",
        on_progress: ProgressListener | None = None,
    ) -> CallOutcome:
        """Call ``tool`` once; waiting for a restart counts against the deadline.

        Raises ``CallTimeout``, ``CallRefused``, ``ServerDied`` (outcome unknown) or ``ServerFailed``.
        """
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        try:
            async with asyncio.timeout_at(deadline):
                link = await self._ready_link()
        except TimeoutError:
            raise CallTimeout(
                self.name,
                f"tool server {self.name!r} was not back within the {timeout_seconds:g} s of a call to {tool!r}",
            ) from None
        remaining = deadline - asyncio.get_running_loop().time()
        return await self._call_on(link, tool, arguments, remaining, timeout_seconds, session, on_progress)

    async def _call_on(
        self,
        link: _Link,
        tool: str,
        arguments: Mapping[str, Any],
        remaining: float,
        limit: float,
        session: str,
        on_progress: ProgressListener | None,
    ) -> CallOutcome:
        from mcp.shared.exceptions import MCPError
        from mcp_types import (
            CONNECTION_CLOSED,
            REQUEST_TIMEOUT,
            CallToolRequest,
            CallToolRequestParams,
            CallToolResult,
        )
        from pydantic import ValidationError

        meta: Any = {SESSION_META_KEY: session} if session else None
        params = CallToolRequestParams(name=tool, arguments=dict(arguments), _meta=meta)
        try:
            result = await link.session.send_request(
                CallToolRequest(params=params),
                CallToolResult,
                request_read_timeout_seconds=max(remaining, 0.001),
                progress_callback=on_progress,
            )
        except MCPError as error:
            if error.error.code == CONNECTION_CLOSED:
                raise self._died(link, tool) from None
            if error.error.code == REQUEST_TIMEOUT:
                self._check_soon(link)
                raise CallTimeout(
                    self.name,
                    f"{tool!r} on tool server {self.name!r} gave no answer within {limit:g} s and was cancelled",
                ) from None
            self.restarts = 0
            raise CallRefused(self.name, f"tool server {self.name!r} refused {tool!r}: {error.error.message}") from None
        except ValidationError as error:
            raise CallRefused(
                self.name,
                f"tool server {self.name!r} sent a result of {tool!r} that is not MCP: {error.errors()[0]['msg']}",
            ) from None
        self.restarts = 0
        return call_outcome(result)

    def _died(self, link: _Link, tool: str) -> ServerDied:
        how = link.pipes.ended.result() if link.pipes.ended.done() else "was stopped"
        return ServerDied(self.name, f"tool server {self.name!r} {how} during a call to {tool!r}")

    async def _ready_link(self) -> _Link:
        while True:
            if self.state is ServerState.FAILED:
                raise ServerFailed(self.name, self.reason)
            if self.state is ServerState.STOPPED:
                raise ServerFailed(self.name, f"tool server {self.name!r} is not running")
            if self._link is not None and not self._link.pipes.ended.done():
                return self._link
            await self._changed.wait()

    def _set_state(self, state: ServerState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_changed()

    async def _own(self) -> None:
        """Hold one connection after the other until stopped or out of restarts."""
        started = False
        while not self._stopping.is_set():
            reason = await self._hold()
            if self._stopping.is_set():
                return
            started = started or self.state is ServerState.READY
            self.reason = reason
            if not started or self.restarts >= self._policy.max_restarts:
                self._give_up(reason, started)
                return
            self.restarts += 1
            self.total_restarts += 1
            logger.warning("%s; restart %d of %d", reason, self.restarts, self._policy.max_restarts)
            self._set_state(ServerState.RESTARTING)
            await self._pause(self._policy.backoff_seconds(self.restarts))

    def _note_owner_end(self, owner: asyncio.Task[None]) -> None:
        """A cancelled or broken owner must not leave callers waiting."""
        if owner.cancelled():
            self._set_state(ServerState.STOPPED)
        elif owner.exception() is not None:
            self._give_up(f"supervision of tool server {self.name!r} broke: {owner.exception()!r}", started=True)

    def _give_up(self, reason: str, started: bool) -> None:
        if started:
            count = f"{self.restarts} restarts without answering a call in between"
            self.reason = f"tool server {self.name!r} failed {count}. {reason}"
        self._set_state(ServerState.FAILED)
        if started:
            self._on_failed(ServerFailed(self.name, self.reason))

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _hold(self) -> str:
        """Run the server once from start to end; return how it ended, with the end of its stderr."""
        try:
            spec = self.spec.resolved()
        except MissingVariable as error:
            return str(error)
        with self._open_log() as log:
            begin = log.seek(0, 2)
            try:
                ended = await self._hold_process(spec, log)
            except OSError as error:
                ended = f"could not be started: {error.strerror or error}: {error.filename or spec.command}"
            tail = _tail(log, begin)
        return f"tool server {self.name!r} {ended}" + (f"; its stderr ends with:\n{tail}" if tail else "")

    async def _hold_process(self, spec: ServerSpec, log: IO[bytes]) -> str:
        from mcp.client.session import ClientSession

        async with AsyncExitStack() as stack:
            pipes = await stack.enter_async_context(stdio_pipes(spec, log))
            session = await stack.enter_async_context(ClientSession(pipes.incoming, pipes.outgoing))
            self._greeting = pipes
            problem = await self._greet(session, spec.start_timeout_seconds)
            self._greeting = None
            if problem:
                return pipes.ended.result() if pipes.ended.done() else problem
            await self._serve(_Link(session, pipes, asyncio.get_running_loop().time()))
            return pipes.ended.result() if pipes.ended.done() else "was stopped"

    async def _greet(self, session: ClientSession, timeout_seconds: float) -> str:
        """Agree on a protocol and read the tools; return what went wrong, or nothing.

        Errors must not leave the session's task group, which would wrap them.
        """
        from mcp.shared.exceptions import MCPError
        from pydantic import ValidationError

        try:
            async with asyncio.timeout(timeout_seconds):
                try:
                    await session.discover()
                except (MCPError, ValidationError, RuntimeError):
                    await session.initialize()
                self.tools = await _list_tools(session, self.spec.idempotent_tools)
        except TimeoutError:
            return f"did not answer within {timeout_seconds:g} s of its start"
        except (MCPError, ValidationError, RuntimeError) as error:
            return f"does not speak MCP as expected: {error}"
        return ""

    async def _serve(self, link: _Link) -> None:
        self._link = link
        self._set_state(ServerState.READY)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({link.pipes.ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._link = None
        if asyncio.get_running_loop().time() - link.since >= self._policy.stable_seconds:
            self.restarts = 0

    def _check_soon(self, link: _Link) -> None:
        """After a timeout ask for a sign of life, so that a hung server is restarted and a slow tool is not."""
        if not self._checks:
            check = asyncio.create_task(self._check(link))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, link: _Link) -> None:
        from mcp.shared.exceptions import MCPError
        from mcp_types import REQUEST_TIMEOUT, ListToolsRequest, ListToolsResult

        limit = self.spec.start_timeout_seconds
        try:
            await link.session.send_request(ListToolsRequest(), ListToolsResult, request_read_timeout_seconds=limit)
        except MCPError as error:
            if error.error.code == REQUEST_TIMEOUT and not link.pipes.ended.done():
                link.pipes.kill(f"gave no sign of life for {limit:g} s and was killed")

    def _open_log(self) -> IO[bytes]:
        if self._log_path is None:
            return tempfile.TemporaryFile()
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        return self._log_path.open("a+b")


async def _list_tools(session: ClientSession, idempotent_tools: frozenset[str]) -> tuple[ToolInfo, ...]:
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


def _tail(log: IO[bytes], begin: int) -> str:
    size = log.seek(0, 2)
    log.seek(max(begin, size - TAIL_BYTES))
    return log.read().decode(errors="replace").strip()
