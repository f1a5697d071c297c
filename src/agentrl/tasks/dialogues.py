"""Dialogue files for supervised training: one JSON object a line with ``messages`` and, where they apply, ``tools``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.tasks.files import MAX_SHOWN, error_text, parse_json
from agentrl.types import Message, ToolSpec

ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialogue:
    """``line`` is where it stands in its file, from 1."""

    line: int
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]


class DialogueProblem(ValueError):
    """``field`` is what is wrong; the text says what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def load_dialogues(path: str | Path) -> list[Dialogue]:
    """The dialogues of a file, in its order; refused as a whole if any is wrong (``ConfigError`` with line, field)."""
    file = Path(path)
    try:
        lines = file.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", setting=str(file)) from None
    dialogues: list[Dialogue] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            dialogues.append(dialogue(number, line))
        except DialogueProblem as problem:
            problems.append(f"{file}, line {number}, field {problem.field}: {problem}")
        except (ValueError, RecursionError) as error:
            problems.append(f"{file}, line {number}: no valid JSON in UTF-8: {error_text(error)}")
    if not dialogues and not problems:
        problems = [f"{file}: the file holds no dialogue"]
    if problems:
        hidden = len(problems) - MAX_SHOWN
        raise ConfigError("\n".join([*problems[:MAX_SHOWN], *([f"... and {hidden} more"] if hidden > 0 else [])]))
    return dialogues


def dialogue(number: int, line: bytes) -> Dialogue:
    row = parse_json(line.decode("utf-8"))
    if not isinstance(row, dict):
        raise DialogueProblem("(row)", f"a row is a JSON object, not {type(row).__name__}")
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        raise DialogueProblem("messages", "expects a list of messages with role and content")
    checked = tuple(checked_message(index, message) for index, message in enumerate(messages))
    require_dialogue(checked)
    return Dialogue(line=number, messages=checked, tools=tuple(tool_specs(row.get("tools") or ())))


def checked_message(index: int, message: Any) -> Message:
    """The message with the arguments of its calls as objects, which clients often keep as JSON text."""
    where = f"messages[{index}]"
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        raise DialogueProblem(where, f"expects an object with a role of {', '.join(ROLES)}")
    content = message.get("content")
    if not isinstance(content, str | None):
        raise DialogueProblem(f"{where}.content", f"expects text, not {type(content).__name__}")
    calls = message.get("tool_calls") or []
    if not calls:
        return {**message, "content": content or ""}
    if message["role"] != "assistant":
        raise DialogueProblem(f"{where}.tool_calls", "only assistant messages call tools")
    return {**message, "content": content or "", "tool_calls": [checked_call(where, call) for call in calls]}


def checked_call(where: str, call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise DialogueProblem(f"{where}.tool_calls", "expects {type: function, function: {name, arguments}}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise DialogueProblem(f"{where}.tool_calls", f"arguments are no JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise DialogueProblem(f"{where}.tool_calls", f"arguments are {type(arguments).__name__}, not an object")
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def require_dialogue(messages: Sequence[Message]) -> None:
    roles = [message["role"] for message in messages]
    if "assistant" not in roles:
        raise DialogueProblem("messages", "there is no assistant message, so nothing to learn")
    if roles[0] == "assistant":
        raise DialogueProblem("messages[0]", "a dialogue begins with a system or user message")
    for index, (before, role) in enumerate(pairwise(roles), start=1):
        if before == role == "assistant":
            raise DialogueProblem(f"messages[{index}]", "follows another assistant message: join the two")
        if role == "tool" and before not in ("assistant", "tool"):
            raise DialogueProblem(f"messages[{index}]", f"a tool result follows a call, not a {before} message")


def tool_specs(tools: Any) -> Iterator[ToolSpec]:
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise DialogueProblem("tools", "expects a list")
    for index, tool in enumerate(tools):
        function: Any = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise DialogueProblem(f"tools[{index}]", "expects {type: function, function: {name, parameters}}")
        yield ToolSpec(
            name=function["name"],
            description=function.get("description") or "",
            parameters=function.get("parameters") or {"type": "object", "properties": {}},
        )
