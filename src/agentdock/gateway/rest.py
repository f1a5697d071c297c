"""REST routes over the dock: the reference's paths and shapes, with real status codes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from aiohttp import web

from agentdock.calls import CallOutcome, CallProblem
from agentdock.config import DEFAULT_PROFILE
from agentdock.dock import Dock
from agentdock.gateway.answers import (
    STATUS,
    TOOL_ERROR,
    Refused,
    content_of,
    error_answer,
    json_answer,
    legacy_wanted,
    names_of,
    notes_of,
    result_answer,
    status_of,
)
from agentdock.gateway.formats import FORMATS, as_openai, written
from agentdock.gateway.names import ToolNames

SESSION_HEADER = "X-AgentDock-Session"
RUN_HEADER = "X-AgentDock-Run"
TIMEOUT_HEADER = "X-AgentDock-Timeout"


class Routes:
    """Handlers of the REST paths. All that call or list take ``?profile=`` or a path under ``/p/{profile}``."""

    def __init__(self, dock: Dock, names: ToolNames) -> None:
        self._dock = dock
        self._names = names

    def table(self) -> list[web.RouteDef]:
        return [
            web.get("/mcpapi/servers", self.servers),
            web.get("/mcpapi/tools", self.tools),
            web.get("/mcpapi/server/{server}/tools", self.tools_of_server),
            web.post("/mcpapi/tool/{tool:.+}", self.call),
            web.delete("/mcpapi/session/{session:.+}", self.end_session),
            web.get("/list_tools", self.list_tools),
            web.get("/list_prompts", self.list_none),
            web.get("/list_resources", self.list_none),
            web.post("/call_tool", self.call_openai),
            web.get("/tools", self.export),
            web.get("/p/{profile}/tools", self.export),
            web.post("/p/{profile}/tool/{tool:.+}", self.call),
            web.get("/v1/servers", self.server_states),
        ]

    async def servers(self, request: web.Request) -> web.Response:
        return json_answer({"servers": [status.name for status in self._dock.servers(profile=_profile(request))]})

    async def server_states(self, request: web.Request) -> web.Response:
        return json_answer({"servers": [asdict(status) for status in self._dock.servers(profile=_profile(request))]})

    async def tools(self, request: web.Request) -> web.Response:
        return json_answer({"tools": [as_openai(t, t.id) for t in self._dock.tools(profile=_profile(request))]})

    async def tools_of_server(self, request: web.Request) -> web.Response:
        profile, server = _profile(request), request.match_info["server"]
        names = [status.name for status in self._dock.servers(profile=profile)]
        if server not in names:
            raise Refused(404, "unknown_server", f"there is no server {server!r}; there are {names_of(names)}")
        tools = [as_openai(t, t.name) for t in self._dock.tools(profile=profile) if t.server == server]
        return json_answer({"server": server, "tools": tools})

    async def end_session(self, request: web.Request) -> web.Response:
        """End the servers that only this session uses. One that has none is no error, so that anyone may repeat it."""
        session = request.match_info["session"]
        return json_answer({"session": session, "ended": await self._dock.end_session(session)})

    async def list_tools(self, request: web.Request) -> web.Response:
        return json_answer(written(self._dock.tools(profile=_profile(request)), "openai"))

    async def list_none(self, request: web.Request) -> web.Response:
        """Prompts and resources of servers are not offered; clients of the reference that ask get empty lists."""
        return json_answer([])

    async def export(self, request: web.Request) -> web.Response:
        form = request.query.get("format", "openai")
        if form not in FORMATS:
            raise Refused(400, "bad_request", f"format is {form!r}, expected one of {', '.join(FORMATS)}")
        return json_answer({"tools": written(self._dock.tools(profile=_profile(request)), form)})

    async def call(self, request: web.Request) -> web.Response:
        arguments = await body_of(request)
        outcome = await self._call(request, request.match_info["tool"], arguments, timeout_of(request.headers))
        if outcome.is_error:
            return self._tool_error(request, outcome, notes_of(outcome))
        return json_answer(result_answer(outcome))

    async def call_openai(self, request: web.Request) -> web.Response:
        """The answer to one tool call of a chat message, as a message of role ``tool``."""
        call = await body_of(request)
        name, arguments = _function_of(call)
        message = {"role": "tool", "tool_call_id": call.get("id")}
        seconds = timeout_of(request.headers)
        if seconds is None and "timeout_seconds" in call:
            seconds = _seconds(call["timeout_seconds"], "timeout_seconds")
        outcome = await self._call(request, name, arguments, seconds)
        if outcome.is_error:
            return self._tool_error(request, outcome, message)
        return json_answer(message | {"content": content_of(outcome)})

    async def _call(
        self, request: web.Request, name: str, arguments: Mapping[str, Any], seconds: float | None
    ) -> CallOutcome:
        profile = _profile(request)
        return await self._dock.call(
            self._names.find(name, profile).id,
            arguments,
            session=request.headers.get(SESSION_HEADER, ""),
            run=request.headers.get(RUN_HEADER, ""),
            profile=profile,
            timeout_seconds=seconds,
        )

    def _tool_error(
        self, request: web.Request, outcome: CallOutcome, extra: Mapping[str, Any] | None = None
    ) -> web.Response:
        legacy = legacy_wanted(request.headers, self._dock.config.gateway.legacy_errors)
        return error_answer(STATUS[TOOL_ERROR], TOOL_ERROR, outcome.text, legacy=legacy, extra=extra)


def problem_answer(request: web.Request, problem: CallProblem, *, legacy: bool) -> web.Response:
    return error_answer(
        status_of(problem),
        problem.code,
        str(problem),
        retryable=problem.retryable,
        legacy=legacy_wanted(request.headers, legacy),
    )


async def body_of(request: web.Request) -> dict[str, Any]:
    """The JSON object in the body; an empty body is an empty object."""
    raw = await request.read()
    try:
        body = json.loads(raw) if raw.strip() else {}
    except ValueError as error:
        raise Refused(400, "bad_request", f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise Refused(400, "bad_request", f"the body is a JSON {type(body).__name__}, expected an object")
    return body


def timeout_of(headers: Mapping[str, str]) -> float | None:
    """Seconds until the caller gives up, from the header; None if it does not say."""
    value = headers.get(TIMEOUT_HEADER)
    return None if value is None else _seconds(value, f"header {TIMEOUT_HEADER}")


def _seconds(value: Any, place: str) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise Refused(400, "bad_request", f"{place} is {value!r}, expected a number of seconds above 0")
    return seconds


def _profile(request: web.Request) -> str:
    return request.match_info.get("profile") or request.query.get("profile") or DEFAULT_PROFILE


def _function_of(call: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and arguments of a tool call in OpenAI's form, whose arguments are JSON in a string (or an object)."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused(400, "bad_request", 'expected {"id", "type": "function", "function": {"name", "arguments"}}')
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError as error:
            raise Refused(400, "bad_request", f"function.arguments is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise Refused(400, "bad_request", "function.arguments is not a JSON object")
    return function["name"], arguments
