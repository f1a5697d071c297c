"""What passes between a caller and a tool server: descriptions, outcomes and the ways a call can go wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import mcp_types

PROTOCOL_META = "io.modelcontextprotocol/"


class ProgressListener(Protocol):
    """Told how far a call is: ``progress`` of ``total``, in units of the tool."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInfo:
    """A tool as its server lists it. ``idempotent``: declared read-only or idempotent, so a call may be repeated.

    ``output_schema`` is that of structured results, None if the server declares none; ``meta`` what it says under
    ``_meta``.
    """

    name: str
    description: str
    input_schema: Mapping[str, Any]
    idempotent: bool
    annotations: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""
    output_schema: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutcome:
    """A server's answer. ``is_error`` is the tool's own verdict; ``structured`` is what it sent beside the text,
    ``meta`` what it says under ``_meta``.

    ``content`` holds the MCP content blocks as plain JSON, ``text`` the same for a reader of text. ``notes`` say what
    was changed in the arguments before they were sent.
    """

    text: str
    is_error: bool
    structured: Any = None
    content: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


class CallProblem(Exception):
    """A call that brought no result. ``code`` is its short name; ``retryable`` says that repeating may help."""

    code = "call_failed"
    retryable = False


class UnknownTool(CallProblem):
    """No tool, or more than one, goes by that name."""

    code = "unknown_tool"


class InvalidArguments(CallProblem):
    """The arguments do not fit the tool's schema; the call was not sent. The message is for the model to act on."""

    code = "invalid_arguments"


class UnknownProfile(CallProblem):
    """No profile has that name."""

    code = "unknown_profile"


class ServerError(CallProblem):
    """Something between caller and tool went wrong; ``server`` names where."""

    def __init__(self, server: str, message: str) -> None:
        super().__init__(message)
        self.server = server


class StartFailed(ServerError):
    """The server could not be started or did not answer in time."""

    code = "start_failed"
    retryable = True


class ServerDied(ServerError):
    """The server ended while the call was under way: nobody knows whether it was carried out."""

    code = "server_died"


class ServerFailed(ServerError):
    """The server keeps failing and is not restarted any more."""

    code = "server_failed"
    retryable = True


class CallTimeout(ServerError):
    """The call reached its deadline; the server was told to stop working on it."""

    code = "timeout"


class Busy(CallTimeout):
    """The call got no place among those under way before its deadline; it was not sent."""

    code = "busy"
    retryable = True


class CallRefused(ServerError):
    """The server answered with a protocol error instead of a result."""

    code = "refused"


def tool_info(tool: mcp_types.Tool, idempotent_tools: frozenset[str]) -> ToolInfo:
    hints = tool.annotations
    declared = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return ToolInfo(
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        idempotent=declared or tool.name in idempotent_tools,
        annotations=hints.model_dump(by_alias=True, exclude_none=True) if hints else {},
        title=tool.title or "",
        output_schema=tool.output_schema,
        meta=_own_meta(tool.meta),
    )


def call_outcome(result: mcp_types.CallToolResult) -> CallOutcome:
    text = "\n".join(_block_text(block) for block in result.content)
    if not result.content and result.structured_content is not None:
        text = json.dumps(result.structured_content, ensure_ascii=False)
    return CallOutcome(
        text=text,
        is_error=bool(result.is_error),
        structured=result.structured_content,
        content=tuple(block.model_dump(mode="json", by_alias=True, exclude_none=True) for block in result.content),
        meta=_own_meta(result.meta),
    )


def _own_meta(meta: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a server says of its own accord; what the protocol adds concerns the connection to that server only."""
    return {key: value for key, value in (meta or {}).items() if not key.startswith(PROTOCOL_META)}


def _block_text(block: mcp_types.ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "resource":
            text = getattr(block.resource, "text", None)
            return text if text is not None else f"[resource {block.resource.uri}]"
        case "resource_link":
            return f"[resource {block.uri}]"
        case _:
            return f"[{block.type} {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
