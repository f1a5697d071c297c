"""What a completion means: reasoning, content and tool calls, each call judged against the declared tools."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentrl.chat.formats import (
    deepseek_v3,
    kimi_k2,
    llama3,
    minicpm,
    mistral,
    pythonic,
    qwen,
    qwen3_coder_xml,
)
from agentrl.chat.formats.base import Attempt, Context, Draft, Format
from agentrl.chat.schema import complaint
from agentrl.errors import ConfigError
from agentrl.types import CallStatus, Reply, ToolCall, ToolSpec

FORMATS: dict[str, Format] = {
    "qwen": qwen.FORMAT,
    "qwen3_coder_xml": qwen3_coder_xml.FORMAT,
    "mistral": mistral.FORMAT,
    "llama3": llama3.FORMAT,
    "deepseek_v3": deepseek_v3.FORMAT,
    "kimi_k2": kimi_k2.FORMAT,
    "pythonic": pythonic.FORMAT,
    "minicpm": minicpm.FORMAT,
}
ALIASES = {"qwen25": "qwen", "hermes": "qwen", "deepseekv3": "deepseek_v3"}
MAX_SUGGESTED = 20
"""Tools listed to a model that called an unknown one."""


def parse_reply(
    text: str,
    *,
    format: str,
    finish_reason: str = "stop",
    prompt_ends_in_think: bool = False,
    tools: Iterable[ToolSpec | Mapping[str, Any]] | None = None,
) -> Reply:
    """Read ``text``, what the model produced without its end token.

    ``tools`` are the declared ones (``ToolSpec``, OpenAI's dicts, or ``{name, parameters}``); without any, names and
    arguments are not checked. Raises ``ConfigError`` for an unknown format. Time is linear in the text.
    """
    chosen = format_named(format)
    schemas = dict(map(declared, tools or ()))
    reasoning, rest = split_reasoning(text, chosen.reasoning, opened=prompt_ends_in_think)
    draft = Draft(Context(finished=finish_reason != "length", tools=schemas))
    chosen.parse(rest, draft)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    calls = [judged(attempt, call_id(digest, n), schemas) for n, attempt in enumerate(draft.attempts)]
    return Reply(content=draft.content, reasoning=reasoning, calls=tuple(calls))


def format_named(name: str) -> Format:
    """Raises ``ConfigError``, naming the option and the formats, for an unknown one."""
    chosen = FORMATS.get(ALIASES.get(name, name))
    if chosen is None:
        known = ", ".join([*FORMATS, *ALIASES])
        raise ConfigError(
            f"there is no tool-call format {name!r}; choose one of: {known}", setting="--tool_call_parser"
        )
    return chosen


def split_reasoning(text: str, tags: tuple[str, str], *, opened: bool) -> tuple[str, str]:
    """Everything up to the first closing tag is reasoning, if the prompt or the text opened it; the rest is content."""
    begin, end = tags
    stripped = text.lstrip()
    if not opened and not stripped.startswith(begin):
        return "", text
    reasoning, _, content = stripped.removeprefix(begin).partition(end)
    return reasoning.strip(), content


def declared(tool: ToolSpec | Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if isinstance(tool, ToolSpec):
        return tool.name, tool.parameters
    function = tool.get("function") or tool
    return function["name"], function.get("parameters") or {}


def call_id(digest: str, number: int) -> str:
    """Nine letters and digits, as the strictest template (Mistral's) wants them; equal for equal replies."""
    return f"{digest[:5]}{number:04d}"


def judged(attempt: Attempt, default_id: str, schemas: Mapping[str, Mapping[str, Any]]) -> ToolCall:
    """The call, compared with the declared tools if there are any."""
    status, reason = attempt.status, attempt.reason
    if status is CallStatus.OK and schemas:
        status, reason = compared(attempt, schemas)
    return ToolCall(
        id=attempt.id or default_id,
        name=attempt.name,
        arguments=attempt.arguments,
        status=status,
        reason=reason,
        repaired=attempt.repaired,
        raw=attempt.raw,
    )


def compared(attempt: Attempt, schemas: Mapping[str, Mapping[str, Any]]) -> tuple[CallStatus, str]:
    if attempt.name not in schemas:
        return CallStatus.UNKNOWN_TOOL, unknown_tool(attempt.name, list(schemas))
    wrong = complaint(attempt.arguments, schemas[attempt.name])
    return (CallStatus.BAD_ARGUMENTS, wrong) if wrong else (CallStatus.OK, "")


def unknown_tool(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name[:64], known, n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    shown = ", ".join(known[:MAX_SUGGESTED]) + (", ..." if len(known) > MAX_SUGGESTED else "")
    return (
        f"there is no tool {name[:64]!r}{hint} The tools are: {shown}"
        if hint
        else (f"there is no tool {name[:64]!r}. The tools are: {shown}")
    )
