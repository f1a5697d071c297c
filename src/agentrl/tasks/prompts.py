"""The messages a task begins with, and the default instruction for its answer format."""

from __future__ import annotations

from agentrl.tasks.answers import BOXED
from agentrl.types import Message, Task

TAG_INSTRUCTION = (
    "Answer the question, using the tools where they help. When you are sure, give your final answer, and only the "
    "answer, between <{tag}> and </{tag}>."
)
BOXED_INSTRUCTION = (
    "Answer the question, using the tools where they help. Reason step by step. When you are sure, put your final "
    "answer, and only the answer, in \\boxed{}."
)


def task_messages(task: Task, *, default_prompt: bool = True) -> tuple[Message, ...]:
    """``task.messages`` as they are, or system prompt and query.

    A task without a system prompt gets the instruction for its ``answer_schema`` unless ``default_prompt`` is False.
    ``query_prompt`` goes around the query where it holds ``{query}``, and after it otherwise.
    """
    if task.messages:
        return task.messages
    system = task.system_prompt
    if system is None and default_prompt:
        system = answer_instruction(task.answer_schema)
    question: Message = {"role": "user", "content": with_query_prompt(task.query, task.query_prompt)}
    return ({"role": "system", "content": system}, question) if system else (question,)


def answer_instruction(schema: str) -> str:
    return BOXED_INSTRUCTION if schema == BOXED else TAG_INSTRUCTION.format(tag=schema)


def with_query_prompt(query: str, prompt: str | None) -> str:
    if not prompt:
        return query
    return prompt.replace("{query}", query) if "{query}" in prompt else f"{query}\n\n{prompt}"
