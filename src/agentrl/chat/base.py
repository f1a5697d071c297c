"""What a renderer promises: messages become token ids once, sampled ids are never rendered again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentrl.types import Message, Reply, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """Ids to append after a completion so that the model can go on.

    ``append_only`` False: the template rewrote what went before; ``prompt_ids`` is then the whole new prompt (a new
    branch) and ``ids`` is empty. Otherwise the new prompt is the old prompt + sampled ids + ``ids``. ``forced`` ids at
    the head of ``ids`` end the assistant turn because the model did not (cut by length); they are never trained.
    ``prompt_text`` is how the template writes the new prompt if it writes the completion as it was sampled; the next
    ``extend`` may use it to see at once that nothing was rewritten.
    """

    ids: tuple[int, ...] = ()
    append_only: bool = True
    prompt_ids: tuple[int, ...] = ()
    num_forced: int = 0
    prompt_text: str = ""


class Renderer(Protocol):
    """One per model, stateless, shared by all episodes of a process."""

    stop_token_ids: tuple[int, ...]

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Prompt ids up to and with the generation prompt. ``tools=()`` renders like no tools at all."""
        ...

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        finish_reason: str,
        prompt_ids: Sequence[int],
        tools: Sequence[ToolSpec] = (),
    ) -> Reply:
        """Meaning of a completion; ``prompt_ids`` tells whether the prompt already opened the reasoning block.

        ``tools`` are the declared ones: names and arguments are checked against them when there are any, and formats
        that write bare values read the types from them.
        """
        ...

    def assistant_message(self, reply: Reply) -> Message:
        """The message the template would render for this reply."""
        ...

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
        """``messages`` end with the assistant message of ``sampled_ids``; ``new_messages`` follow it (tool results, a
        nudge). ``prompt_ids`` is the prompt the completion was sampled from, ``prompt_text`` that of the extension
        which made it."""
        ...
