"""Any Hugging Face chat template as a token-exact renderer: what was sampled is appended to, never rendered again."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentrl.chat.base import Extension
from agentrl.chat.markers import MarkerGuard
from agentrl.chat.reply import format_named, parse_reply
from agentrl.errors import RenderError
from agentrl.types import CallStatus, Message, Reply, ToolCall, ToolSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LOG = logging.getLogger(__name__)
NUM_TAIL_TOKENS = 16
"""How much of a prompt is decoded to see whether it opened the reasoning."""


class TemplateRenderer:
    """Implements ``Renderer`` over ``tokenizer.chat_template``.

    The glue between a completion and what follows is found by rendering the conversation with a unique word in place
    of the sampled text and keeping what stands behind that word. Where the template writes the history differently
    once new messages follow (Qwen3 drops old reasoning), the next prompt is a branch; ``num_rewritten`` counts them.

    ``eos_token_ids`` are end tokens beyond the tokenizer's own (those of the generation config). ``template_options``
    are passed to the template (``enable_thinking`` ...). Raises ``RenderError`` where the template refuses.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *,
        format: str = "qwen",
        eos_token_ids: Sequence[int] = (),
        template_options: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.format = format
        self.num_rewritten = 0
        self._format = format_named(format)
        self._options = dict(template_options or {})
        self._word = "w" + secrets.token_hex(8)
        self._source = str(
            tokenizer.get_chat_template() if isinstance(tokenizer.chat_template, str) else tokenizer.chat_template
        )
        self._guard = MarkerGuard(tokenizer)
        self._arguments_as_text = self._wants_arguments_as_text()
        self._separate_reasoning = "reasoning_content" in self._source
        self._turn_end = self._probe_turn_end()
        stops = [*eos_token_ids, tokenizer.eos_token_id, self._turn_end, *self._written_ends()]
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(token for token in stops if token is not None))
        own_words = frozenset(str(tokenizer.convert_ids_to_tokens(token)) for token in self.stop_token_ids)
        self._guard = MarkerGuard(tokenizer, own_words & set(tokenizer.get_added_vocab()))

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        return self._guard.encode(self._render(messages, tools))

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        finish_reason: str,
        prompt_ids: Sequence[int],
        tools: Sequence[ToolSpec] = (),
    ) -> Reply:
        tail = self._decode(prompt_ids[-NUM_TAIL_TOKENS:])
        return parse_reply(
            self._decode(self._without_end(token_ids)),
            format=self.format,
            finish_reason=finish_reason,
            prompt_ends_in_think=tail.rstrip().endswith(self._format.reasoning[0]),
            tools=tools,
        )

    def assistant_message(self, reply: Reply) -> Message:
        calls = [call for call in reply.calls if call.arguments is not None and call.status is not CallStatus.MALFORMED]
        unusable = [call.raw for call in reply.calls if call not in calls and call.raw]
        message = self._assistant("\n".join(filter(None, [reply.content, *unusable])), reply.reasoning)
        if calls:
            message["tool_calls"] = [openai_call(call) for call in calls]
        return message

    def extend(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        prompt_ids: Sequence[int],
        sampled_ids: Sequence[int],
        new_messages: Sequence[Message],
        prompt_text: str = "",
    ) -> Extension:
        found = self._glue(messages, tools, new_messages, prompt_text)
        if found is None:
            self._note_rewriting()
            whole = self._render([*messages, *new_messages], tools)
            return Extension(append_only=False, prompt_ids=tuple(self._guard.encode(whole)), prompt_text=whole)
        before, glue = found
        text = before + self._decode(self._without_end(sampled_ids)) + glue
        return replace(self._after(sampled_ids, self._guard.encode(glue)), prompt_text=text)

    def _glue(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], new: Sequence[Message], prompt_text: str
    ) -> tuple[str, str] | None:
        """The template's text before the assistant's words and behind them; None if it rewrites what was before.

        Text before them that is ``prompt_text``, what the model really read, needs no second rendering to compare with.
        """
        *history, assistant = messages
        reasons = bool(assistant.get("reasoning_content")) or self._format.reasoning[1] in str(assistant.get("content"))
        stand_in = self._assistant(self._word, self._word + "r" if reasons else "")
        after = self._render([*history, stand_in, *new], tools)
        before = prompt_text if prompt_text and after.startswith(prompt_text) else self._render(history, tools)
        if not after.startswith(before):
            return None
        sampled, found, glue = after[len(before) :].rpartition(self._word)
        if not found or (reasons and self._word + "r" not in sampled):
            return None
        return before, glue

    def _after(self, sampled_ids: Sequence[int], glue: list[int]) -> Extension:
        """Cut or force the end of the assistant's turn, which stands at the head of the glue."""
        num_end = glue.index(self._turn_end) + 1 if self._turn_end in glue else 0
        if sampled_ids and sampled_ids[-1] in (self._turn_end, *self._written_ends()):
            return Extension(ids=tuple(glue[num_end:]))
        return Extension(ids=tuple(glue), num_forced=num_end)

    def _render(self, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generate: bool = True) -> str:
        from jinja2 import TemplateError

        masked = [self._guard.mask(self._as_template_expects(message)) for message in messages]
        specs: list[Any] = [self._guard.mask_spec(spec.as_openai()) for spec in tools]
        try:
            text = self.tokenizer.apply_chat_template(
                masked, tools=specs or None, tokenize=False, add_generation_prompt=generate, **self._options
            )
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as refused:
            roles = ", ".join(str(message.get("role")) for message in messages)
            raise RenderError(f"the chat template refuses messages with the roles {roles}: {refused}") from refused
        assert isinstance(text, str)
        return text

    def _as_template_expects(self, message: Message) -> Message:
        if not (self._arguments_as_text and message.get("tool_calls")):
            return message
        calls = [
            {**call, "function": {**call["function"], "arguments": as_json(call["function"]["arguments"])}}
            for call in message["tool_calls"]
        ]
        return {**message, "tool_calls": calls}

    def _assistant(self, content: str, reasoning: str) -> Message:
        if reasoning and self._separate_reasoning:
            return {"role": "assistant", "content": content, "reasoning_content": reasoning}
        begin, end = self._format.reasoning
        return {"role": "assistant", "content": f"{begin}\n{reasoning}\n{end}\n\n{content}" if reasoning else content}

    def _without_end(self, token_ids: Sequence[int]) -> Sequence[int]:
        num_words = len(token_ids)
        while num_words and token_ids[num_words - 1] in self.stop_token_ids:
            num_words -= 1
        return token_ids[:num_words]

    def _decode(self, ids: Sequence[int]) -> str:
        text = self.tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        assert isinstance(text, str)
        return text

    def _probe_turn_end(self) -> int | None:
        """The added token the template writes right behind an assistant's text."""
        asked: Message = {"role": "user", "content": "q"}
        text = self._render([asked, {"role": "assistant", "content": self._word}], (), generate=False)
        ids = self._guard.encode(text.rpartition(self._word)[2])
        added = set(self.tokenizer.get_added_vocab().values())
        return next((token for token in ids if token in added), None)

    def _written_ends(self) -> list[int]:
        """End tokens besides the usual one that the template itself writes after a turn (Llama 3's ``<|eom_id|>``)."""
        added = self.tokenizer.get_added_vocab()
        return [added[name] for name in ("<|eom_id|>",) if name in added and name in self._source]

    def _wants_arguments_as_text(self) -> bool:
        """Whether the template pastes arguments as they are instead of writing them as JSON."""
        call = ToolCall(id="probe0000", name="probe", arguments={"probe": "x"})
        asked: list[Message] = [{"role": "user", "content": "q"}]
        self._arguments_as_text = False
        try:
            text = self._render([*asked, {"role": "assistant", "content": "", "tool_calls": [openai_call(call)]}], ())
        except RenderError:
            return True
        return "{'probe'" in text

    def _note_rewriting(self) -> None:
        if not self.num_rewritten:
            LOG.warning(
                "the chat template rewrites earlier turns once new messages follow (old reasoning is dropped, for "
                "example): such a turn starts a new branch instead of extending the sampled tokens"
            )
        self.num_rewritten += 1


def openai_call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def as_json(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
