"""What a REST caller reads: results and errors as JSON, each error with a status of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from agentdock.calls import CallOutcome, CallProblem

LEGACY_HEADER = "X-AgentDock-Legacy-Errors"
TOOL_ERROR = "tool_error"
STATUS = {
    "unknown_tool": 404,
    "unknown_profile": 404,
    "invalid_arguments": 422,
    TOOL_ERROR: 422,
    "refused": 502,
    "busy": 503,
    "server_died": 502,
    "start_failed": 503,
    "server_failed": 503,
    "timeout": 504,
}


class Refused(Exception):
    """Ends a request with this status; ``code`` is its short name."""

    def __init__(self, status: int, code: str, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.retryable = retryable


def status_of(problem: CallProblem) -> int:
    return STATUS.get(problem.code, 503 if problem.retryable else 502)


def json_answer(body: Any, *, status: int = 200) -> web.Response:
    return web.Response(
        body=json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        status=status,
        content_type="application/json",
        charset="utf-8",
    )


def error_answer(
    status: int,
    code: str,
    message: str,
    *,
    retryable: bool = False,
    legacy: bool = False,
    extra: Mapping[str, Any] | None = None,
) -> web.Response:
    """The error envelope; with ``legacy`` the reference's form, status 200 and ``status_code`` in the body."""
    if legacy:
        return json_answer({"status_code": status, "detail": message, "headers": None})
    content = {"error": message, "code": code, "retryable": retryable}
    return json_answer({"status": "error", "content": content, **(extra or {})}, status=status)


def content_of(outcome: CallOutcome) -> str | list[dict[str, Any]]:
    """The text of a result that is only one text; otherwise its blocks as parts of an OpenAI message."""
    blocks = outcome.content
    if len(blocks) <= 1 and all(block.get("type") == "text" for block in blocks):
        return outcome.text
    return [_part(block) for block in blocks]


def result_answer(outcome: CallOutcome) -> dict[str, Any]:
    answer: dict[str, Any] = {"status": "success", "content": content_of(outcome)}
    if outcome.structured is not None:
        answer["structured"] = outcome.structured
    return answer | notes_of(outcome)


def notes_of(outcome: CallOutcome) -> dict[str, Any]:
    """What was changed in the arguments, as part of an answer; nothing if they went as they came."""
    return {"notes": list(outcome.notes)} if outcome.notes else {}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    """Text and images in the form of chat messages; all else as MCP sent it, so that nothing is lost."""
    if block.get("type") == "text":
        return {"type": "text", "text": block["text"]}
    if block.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": f"data:{block['mimeType']};base64,{block['data']}"}}
    return dict(block)


def legacy_wanted(headers: Mapping[str, str], default: bool) -> bool:
    """The header decides where it is sent, the configuration where it is not."""
    value = headers.get(LEGACY_HEADER)
    return default if value is None else value.strip().lower() in ("1", "true", "yes")


def names_of(values: Sequence[str]) -> str:
    return ", ".join(values) or "none"
