"""Chat over a token engine: OpenAI's chat request to a prompt, a reply to OpenAI's answer. Not streamed."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentrl.engine.wire import BAD_SAMPLING, WireError, sampling_from
from agentrl.types import Completion, Message, Reply, Sampling, ToolSpec

DEFAULT_MAX_TOKENS = 1024
IGNORED = {"user", "metadata", "store", "parallel_tool_calls", "stream_options", "safety_identifier"}
"""Parameters that change nothing about what is sampled."""
NEUTRAL = {
    "stream": (False, None),
    "n": (1, None),
    "frequency_penalty": (0, None),
    "presence_penalty": (0, None),
    "logit_bias": (None, {}),
    "logprobs": (False, None),
    "top_logprobs": (0, None),
    "stop": (None, []),
    "tool_choice": ("auto", None),
    "response_format": (None, {"type": "text"}),
}
"""Parameters that are understood only at these values; anything else is refused, never ignored."""
USED = {"model", "messages", "tools", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "seed"}


class ChatRenderer(Protocol):
    """The part of the chat room's renderer that one exchange needs; injected by whoever serves."""

    stop_token_ids: tuple[int, ...]

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]: ...

    def parse(self, token_ids: Sequence[int], *, finish_reason: str, prompt_ids: Sequence[int]) -> Reply: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling


def chat_request(body: Mapping[str, Any], *, stop_token_ids: tuple[int, ...]) -> ChatRequest:
    """Raise ``WireError`` for what is malformed or would be ignored."""
    for name, value in body.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise WireError(f"{name} = {value!r} is not supported; leave it out", BAD_SAMPLING)
        if name not in NEUTRAL and name not in USED and name not in IGNORED:
            raise WireError(f"{name} is not supported; leave it out", BAD_SAMPLING)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise WireError("messages must be a list of at least one object with a role")
    limit = body.get("max_completion_tokens") or body.get("max_tokens") or DEFAULT_MAX_TOKENS
    values = {name: body[name] for name in ("temperature", "top_p", "top_k", "seed") if body.get(name) is not None}
    sampling = sampling_from({**values, "max_new_tokens": limit, "stop_token_ids": list(stop_token_ids)})
    return ChatRequest(
        model=str(body.get("model") or ""),
        messages=tuple(with_parsed_arguments(message) for message in messages),
        tools=tuple(tool_from(tool) for tool in body.get("tools") or ()),
        sampling=sampling,
    )


def with_parsed_arguments(message: Message) -> Message:
    """Clients send the arguments of earlier calls as JSON text; chat templates want the object."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [parsed_call(call) for call in message["tool_calls"]]}


def parsed_call(call: Any) -> dict[str, Any]:
    try:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, str):
            arguments = json.loads(arguments or "{}")
        return {**call, "function": {**function, "arguments": arguments}}
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(f"messages: a tool call without readable function.arguments: {error}") from error


def tool_from(tool: Any) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise WireError("tools must be objects {type: function, function: {name, description, parameters}}")
    empty = {"type": "object", "properties": {}}
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or empty,
    )


def chat_answer(completion: Completion, reply: Reply, *, model: str, num_prompt: int) -> dict[str, Any]:
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
        }
        for call in reply.calls
        if call.arguments is not None
    ]
    # A call without usable arguments has no place in the API's tool_calls; its text is shown rather than lost.
    content = reply.content + "".join(call.raw for call in reply.calls if call.arguments is None)
    message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if calls:
        message["tool_calls"] = calls
    finish_reason = "tool_calls" if calls and completion.finish_reason == "stop" else completion.finish_reason
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": num_prompt,
            "completion_tokens": len(completion.token_ids),
            "total_tokens": num_prompt + len(completion.token_ids),
        },
    }
