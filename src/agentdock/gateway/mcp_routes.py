"""MCP over streamable HTTP at ``/mcp`` and ``/p/{profile}/mcp``, for clients of the 2025 and the 2026 protocol.

Import this where it is needed only: the SDK takes half a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar

from aiohttp import web
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
)

from agentdock.calls import CallOutcome, CallProblem, UnknownTool
from agentdock.catalogue import DockTool
from agentdock.config import DEFAULT_PROFILE
from agentdock.dock import Dock
from agentdock.gateway.asgi import answer_by
from agentdock.gateway.formats import as_mcp
from agentdock.gateway.names import ToolNames
from agentdock.gateway.rest import RUN_HEADER, SESSION_HEADER, timeout_of

MCP_SESSION_HEADER = "Mcp-Session-Id"
SESSION_META = "agentdock/session"
RUN_META = "agentdock/run"
ERROR_META = "agentdock/error"
NOTES_META = "agentdock/notes"
PAGE_SIZE = 500
FIRST_PLAIN_STRUCTURED = "2026"

Context = ServerRequestContext[Any, Any]
Result = TypeVar("Result")

# The SDK asks for the schema of a tool without saying for which request.
PROFILE: ContextVar[str] = ContextVar("profile", default=DEFAULT_PROFILE)


class McpRoutes:
    """One MCP server for all profiles; the path of each request says which profile it sees."""

    def __init__(self, dock: Dock, names: ToolNames) -> None:
        self._dock = dock
        self._names = names
        server: Server[Any] = Server(
            "agentdock",
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_prompts=_always(ListPromptsResult(prompts=[])),
            on_list_resources=_always(ListResourcesResult(resources=[])),
            on_list_resource_templates=_always(ListResourceTemplatesResult(resource_templates=[])),
            get_tool_input_schema=self._input_schema,
        )
        # Sessions are kept, because clients of the 2025 protocol cancel a call by a request of its own.
        self._sessions = StreamableHTTPSessionManager(server, max_request_body_size=dock.config.gateway.max_body_bytes)
        self._ending = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    def add_to(self, app: web.Application) -> None:
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)
        for path in ("/mcp", "/p/{profile}/mcp"):
            for method in ("GET", "POST", "DELETE"):
                app.router.add_route(method, path, self.answer)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        profile = request.match_info.get("profile", DEFAULT_PROFILE)
        self._dock.tools(profile=profile)
        PROFILE.set(profile)
        state = {"profile": profile, "timeout_seconds": timeout_of(request.headers)}
        response = await answer_by(self._sessions.handle_request, request, state)
        session = request.headers.get(MCP_SESSION_HEADER)
        if request.method == "DELETE" and session and response.status < 300:
            await self._dock.end_session(session)
        return response

    async def _start(self, app: web.Application) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(started), name="MCP sessions of the gateway")
        await asyncio.wait({started, self._owner}, return_when=asyncio.FIRST_COMPLETED)
        if not started.done():
            await self._owner

    async def _stop(self, app: web.Application) -> None:
        self._ending.set()
        if self._owner is not None:
            await self._owner

    async def _own(self, started: asyncio.Future[None]) -> None:
        """Hold the sessions: the SDK wants them opened and closed in one task."""
        async with self._sessions.run():
            started.set_result(None)
            await self._ending.wait()

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        try:
            return self._names.find(name, PROFILE.get()).input_schema
        except UnknownTool:
            return None

    async def _list_tools(self, context: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        request: Any = context.request
        start = _start_of(params.cursor if params is not None else None)
        listed = list(self._names.named(request.state.profile).items())
        tools = [_listed(tool, name, context.protocol_version) for name, tool in listed[start : start + PAGE_SIZE]]
        page: dict[str, Any] = {"tools": tools}
        if start + PAGE_SIZE < len(listed):
            page["nextCursor"] = str(start + PAGE_SIZE)
        return ListToolsResult.model_validate(page)

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        request: Any = context.request
        meta: Mapping[str, Any] = context.meta or {}
        wants_progress = "progress_token" in meta or "progressToken" in meta
        try:
            tool = self._names.find(params.name, request.state.profile)
            outcome = await self._dock.call(
                tool.id,
                params.arguments or {},
                session=_session_of(request.headers, meta),
                run=request.headers.get(RUN_HEADER) or str(meta.get(RUN_META) or ""),
                profile=request.state.profile,
                timeout_seconds=request.state.timeout_seconds,
                on_progress=context.session.report_progress if wants_progress else None,
            )
        except UnknownTool as unknown:
            raise MCPError(INVALID_PARAMS, str(unknown)) from unknown
        except CallProblem as problem:
            return _problem_result(problem)
        return _result(outcome, context.protocol_version)


def _always(result: Result) -> Callable[[Context, PaginatedRequestParams | None], Awaitable[Result]]:
    async def answer(context: Context, params: PaginatedRequestParams | None) -> Result:
        return result

    return answer


def _start_of(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise MCPError(INVALID_PARAMS, f"cursor {cursor!r} is none that this gateway gave")
    return int(cursor)


def _session_of(headers: Mapping[str, str], meta: Mapping[str, Any]) -> str:
    return headers.get(SESSION_HEADER) or str(meta.get(SESSION_META) or "") or headers.get(MCP_SESSION_HEADER) or ""


def _listed(tool: DockTool, name: str, version: str) -> dict[str, Any]:
    """``tool`` as a client of protocol ``version`` may see it: older ones know structured results as objects only."""
    listed = as_mcp(tool, name)
    if version < FIRST_PLAIN_STRUCTURED and listed.get("outputSchema", {}).get("type") != "object":
        listed.pop("outputSchema", None)
    return listed


def _result(outcome: CallOutcome, version: str) -> CallToolResult:
    result: dict[str, Any] = {"content": [dict(block) for block in outcome.content], "isError": outcome.is_error}
    if isinstance(outcome.structured, dict) or (outcome.structured is not None and version >= FIRST_PLAIN_STRUCTURED):
        result["structuredContent"] = outcome.structured
    meta = dict(outcome.meta) | ({NOTES_META: list(outcome.notes)} if outcome.notes else {})
    if meta:
        result["_meta"] = meta
    return CallToolResult.model_validate(result)


def _problem_result(problem: CallProblem) -> CallToolResult:
    return CallToolResult.model_validate(
        {
            "content": [{"type": "text", "text": str(problem)}],
            "isError": True,
            "_meta": {ERROR_META: {"code": problem.code, "retryable": problem.retryable}},
        }
    )
