"""Chat markers inside messages are data: text of users and tools never becomes a special token.

Added tokens of a tokenizer (``<|im_end|>``, ``<tool_call>`` ...) found in a message are masked before the template is
rendered, so that every marker left in the rendering was written by the template. The rendering is then encoded by a
twin of the tokenizer that knows the template's markers under secret names: literal markers are ordinary text for it,
and everything else is split exactly as the tokenizer itself would split it.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Any

from agentrl.types import Message

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


class MarkerGuard:
    """Masks markers in messages and encodes renderings of masked messages.

    A nonce per process makes mask and secret names unforgeable: a tool cannot write a text that unmasks to a marker.
    ``own_words`` are the only markers masked in the model's own messages, which may use the others.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, own_words: frozenset[str] = frozenset()) -> None:
        self._tokenizer = tokenizer
        tokenizer.backend_tokenizer.no_truncation()
        tokenizer.backend_tokenizer.no_padding()
        self._nonce = "m" + secrets.token_hex(8)
        self._markers = sorted({str(token) for token in tokenizer.get_added_vocab()}, key=len, reverse=True)
        self._names = {marker: f"{self._nonce}x{number}q" for number, marker in enumerate(self._markers)}
        self._any_marker = alternatives(self._markers)
        self._own_marker = alternatives(sorted(own_words, key=len, reverse=True))
        self._any_name = alternatives([f"{self._nonce}x[0-9]+q"], literal=False)

    def mask(self, message: Message) -> Message:
        """The message with markers replaced by masks. A system prompt is the operator's and stays as it is."""
        role = message.get("role")
        if role == "system":
            return message
        return self._masked(message, self._own_marker if role == "assistant" else self._any_marker)

    def mask_spec(self, spec: dict[str, Any]) -> dict[str, Any]:
        """A tool's declaration comes from its server, so its texts are data as well."""
        return self._masked(spec, self._any_marker)

    def encode(self, text: str) -> list[int]:
        """Ids of a rendering of masked messages; equal to a plain encoding when nothing was masked."""
        if self._nonce not in text:
            return self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        hidden = self._any_marker.sub(lambda match: self._secret(match.group()), text)
        literal = self._any_name.sub(lambda match: self._markers[self._number(match.group())], hidden)
        twin, ids = self._twin
        return [ids.get(token, token) for token in twin.encode(literal, add_special_tokens=False).ids]

    def _masked(self, value: Any, pattern: re.Pattern[str]) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda match: self._names[match.group()], value)
        if isinstance(value, dict):
            return {key: self._masked(item, pattern) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._masked(item, pattern) for item in value]
        return value

    def _number(self, name: str) -> int:
        return int(name[len(self._nonce) + 1 : -1])

    def _secret(self, marker: str) -> str:
        return self._names[marker].replace("x", "s", 1)

    @cached_property
    def _twin(self) -> tuple[Tokenizer, dict[int, int]]:
        """The tokenizer with secret names for its markers, and the map from the twin's ids to the real ones."""
        from tokenizers import Tokenizer

        state = json.loads(self._tokenizer.backend_tokenizer.to_str())
        real = {self._secret(token["content"]): token["id"] for token in state["added_tokens"]}
        for token in state["added_tokens"]:
            token["content"] = self._secret(token["content"])
        state |= {"truncation": None, "padding": None, "post_processor": None}
        twin = Tokenizer.from_str(json.dumps(state))
        known = twin.get_added_tokens_decoder().items()
        return twin, {mine: real[token.content] for mine, token in known if token.content in real}


def alternatives(words: list[str], *, literal: bool = True) -> re.Pattern[str]:
    """One pattern for any of ``words``; it never matches when there are none."""
    return re.compile("|".join(map(re.escape, words) if literal else words) if words else r"(?!)")
