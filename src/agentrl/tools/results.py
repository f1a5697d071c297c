"""A tool's text as a ``ToolResult``: data for the model, cut at a limit with a mark it can see."""

from __future__ import annotations

import time

from agentrl.errors import ToolError
from agentrl.types import ResultStatus, ToolCall, ToolResult


def limited(text: str, limit_chars: int) -> tuple[str, bool]:
    """``text`` cut to ``limit_chars`` characters plus a mark with the original size; and whether it was cut."""
    if len(text) <= limit_chars:
        return text, False
    return f"{text[:limit_chars]}\n[truncated: the first {limit_chars} of {len(text)} characters are shown]", True


def tool_result(call: ToolCall, text: str, *, began: float, limit_chars: int) -> ToolResult:
    """A success; ``began`` is ``time.perf_counter()`` before the call."""
    content, truncated = limited(text, limit_chars)
    return ToolResult(
        call_id=call.id,
        name=call.name,
        arguments=call.arguments,
        status=ResultStatus.OK,
        content=content,
        truncated=truncated,
        latency_seconds=time.perf_counter() - began,
    )


def tool_error(text: str, *, limit_chars: int) -> ToolError:
    """The tool's own error as what the model reads."""
    content, truncated = limited(text or "the tool reported an error without text", limit_chars)
    return ToolError(content, truncated=truncated)
