"""A whole dialogue as the turns of a rollout: each reply in the very context in which a model would have sampled it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.chat.template import TemplateRenderer
from agentrl.errors import RenderError
from agentrl.types import Message, ToolSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DialogueTurn:
    """``prompt_ids`` are new context after turn ``parent`` (-1: from the start); ``reply_ids`` end with the end token.

    Headers belong to the prompt: the template writes them, not the model.
    """

    prompt_ids: tuple[int, ...]
    reply_ids: tuple[int, ...]
    parent: int


def dialogue_turns(
    renderer: TemplateRenderer, messages: Sequence[Message], tools: Sequence[ToolSpec]
) -> list[DialogueTurn]:
    """One turn for each assistant message; what follows the last one is no turn.

    A template that rewrites history (Qwen3 drops old reasoning) starts a turn with ``parent`` -1, as in a rollout.
    """
    turns: list[DialogueTurn] = []
    context: list[int] = []
    last = -1
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        delta, parent = opening(renderer, messages[:index], tools, context, turns, last)
        reply = renderer.reply_ids(messages[: index + 1], tools)
        context = [*(context if parent >= 0 else ()), *delta, *reply]
        turns.append(DialogueTurn(prompt_ids=tuple(delta), reply_ids=tuple(reply), parent=parent))
        last = index
    return turns


def opening(
    renderer: TemplateRenderer,
    history: Sequence[Message],
    tools: Sequence[ToolSpec],
    context: Sequence[int],
    turns: Sequence[DialogueTurn],
    last: int,
) -> tuple[Sequence[int], int]:
    """New ids up to and with the generation prompt, and the turn they extend; ``last`` is the last reply's index."""
    if not turns:
        return renderer.open(history, tools), -1
    reply = turns[-1].reply_ids
    if last == len(history) - 1:
        raise RenderError("two assistant messages in a row: a dialogue alternates")
    extension = renderer.extend(
        history[: last + 1],
        tools,
        prompt_ids=context[: len(context) - len(reply)],
        sampled_ids=reply,
        new_messages=history[last + 1 :],
    )
    return (extension.ids, len(turns) - 1) if extension.append_only else (extension.prompt_ids, -1)
