"""The token-exact conversation: sampled ids are kept verbatim, prompts only grow or start a new branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.base import Renderer
from agentrl.types import Completion, Message, Reply, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Ids of the next model call. ``delta`` is what they add to the context that turn ``parent`` left (None: all)."""

    token_ids: Sequence[int]
    delta: Sequence[int]
    parent: int | None
    new_messages: tuple[Message, ...]


class Conversation:
    """One episode's messages and the ids they became.

    ``num_branches`` counts the turns whose prompt did not extend the one before, because the template rewrote history.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._specs: tuple[ToolSpec, ...] = ()
        self._prompt = Prompt(token_ids=(), delta=(), parent=None, new_messages=())
        self._prompt_text = ""
        self._sampled_ids: Sequence[int] = ()
        self._num_turns = 0
        self.messages: list[Message] = []
        self.num_branches = 0

    def open(self, messages: Sequence[Message], specs: Sequence[ToolSpec]) -> None:
        self._specs = tuple(specs)
        self.messages = list(messages)
        ids = self._renderer.open(self.messages, self._specs)
        self._prompt = Prompt(token_ids=ids, delta=ids, parent=None, new_messages=tuple(messages))

    def prompt(self) -> Prompt:
        """Exactly the ids the engine will see."""
        return self._prompt

    def accept(self, completion: Completion) -> Reply:
        """Parse a completion for meaning and keep its ids as they are."""
        reply = self._renderer.parse(
            completion.token_ids,
            finish_reason=completion.finish_reason,
            prompt_ids=self._prompt.token_ids,
            tools=self._specs,
        )
        self._sampled_ids = completion.token_ids
        self.messages.append(self._renderer.assistant_message(reply))
        self._num_turns += 1
        return reply

    def extend(self, new_messages: Sequence[Message]) -> None:
        """Add what follows the last reply; the next prompt extends it, or starts a branch."""
        extension = self._renderer.extend(
            self.messages,
            self._specs,
            prompt_ids=self._prompt.token_ids,
            sampled_ids=self._sampled_ids,
            new_messages=new_messages,
            prompt_text=self._prompt_text,
        )
        self.messages.extend(new_messages)
        self._prompt_text = extension.prompt_text
        if extension.append_only:
            ids = [*self._prompt.token_ids, *self._sampled_ids, *extension.ids]
            delta, parent = extension.ids, self._num_turns - 1
        else:
            ids, delta, parent = extension.prompt_ids, extension.prompt_ids, None
            self.num_branches += 1
        self._prompt = Prompt(token_ids=ids, delta=delta, parent=parent, new_messages=tuple(new_messages))
