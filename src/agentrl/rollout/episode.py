"""One episode: the model and its tools take turns until the model answers or a limit stops it.

Facts are recorded here; what they are worth (rewards, advantages, filters) is decided by code that sees the group.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from agentrl.engine.base import TokenEngine
from agentrl.errors import ContextTooLong, EngineError, EpisodeError, GatewayError, RenderError, ToolError, boundary
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.limits import Limits
from agentrl.tasks import extract_answer
from agentrl.telemetry import Stopwatch
from agentrl.tools.base import ToolSession
from agentrl.types import (
    CallStatus,
    Completion,
    DispatchedSamplingTask,
    Flag,
    Message,
    Outcome,
    Record,
    RecordStatus,
    Reply,
    ResultStatus,
    Sampling,
    Timings,
    ToolCall,
    ToolResult,
)

NUDGE = "You neither called a tool nor gave an answer. Call a tool, or give your final answer in the requested format."
ANSWER_NOW = "This is your last turn. Give your final answer now, in the requested format, without calling a tool."
NUM_REPEATS_FLAGGED = 2

TurnSink = Callable[[DispatchedSamplingTask], Awaitable[None]]
"""Makes a turn durable; a kill loses at most the turn in flight."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """What happened so far in one attempt at one slot."""

    record: Record
    schema: str
    turns: list[DispatchedSamplingTask] = field(default_factory=list)
    final_answer: str | None = None
    replies: set[tuple[int, ...]] = field(default_factory=set)
    num_silent: int = 0
    num_repeats: int = 0
    begun: float = field(default_factory=time.monotonic)
    timings: Timings = field(default_factory=Timings)

    def finish(self, outcome: Outcome, error: EpisodeError | None = None) -> Record:
        spans = [span.version for turn in self.turns for span in turn.version_spans]
        return replace(
            self.record,
            status=self.record.status if outcome.valid else RecordStatus.FAILED,
            outcome=outcome,
            final_answer=self.final_answer,
            num_turns=len(self.turns),
            prompt_tokens=sum(len(turn.prompt_ids_delta) for turn in self.turns),
            sampled_tokens=sum(len(turn.token_ids) for turn in self.turns),
            tool_calls=sum(len(turn.tool_results) for turn in self.turns),
            tool_errors=sum(tool_failed(result) for turn in self.turns for result in turn.tool_results),
            min_version=min(spans, default=None),
            max_version=max(spans, default=None),
            error=error.as_record() if error else None,
            seconds=time.monotonic() - self.begun,
            timings=sum((turn.timings for turn in self.turns), self.timings),
        )


async def rollout(
    episode: Episode,
    messages: Sequence[Message],
    engine: TokenEngine,
    tools: ToolSession,
    chat: Conversation,
    limits: Limits,
    sampling: Sampling,
    sink: TurnSink,
) -> Record:
    """Play ``messages`` until the model answers or a limit stops it; always return the record.

    A broken engine or gateway is this episode's outcome and the boundary that broke, so one bad sibling never costs
    the group. Only cancellation and errors of the store propagate.
    """
    episode.begun = time.monotonic()
    try:
        async with asyncio.timeout(limits.seconds):
            watch = Stopwatch()
            async with boundary(RenderError, "open the conversation"):
                chat.open(messages, tools.specs)
            episode.timings += Timings(render=watch.lap())
            while (stop := limits.reached(len(episode.turns), len(chat.prompt().token_ids))) is None:
                turn, stop = await take_turn(episode, engine, tools, chat, limits, sampling)
                episode.turns.append(turn)
                watch.lap()
                await sink(turn)
                episode.timings += Timings(store=watch.lap())
                if stop is not None:
                    break
    except TimeoutError:
        return episode.finish(Outcome.TIMEOUT)
    except ContextTooLong:
        return episode.finish(Outcome.CONTEXT_LIMIT)
    except EpisodeError as error:
        return episode.finish(Outcome.ERROR, error)
    return episode.finish(stop)


async def take_turn(
    episode: Episode, engine: TokenEngine, tools: ToolSession, chat: Conversation, limits: Limits, sampling: Sampling
) -> tuple[DispatchedSamplingTask, Outcome | None]:
    """One model call and the tool calls it asks for; the outcome ends the episode."""
    number = len(episode.turns)
    watch = Stopwatch()
    prompt, sampling = chat.prompt(), seeded(sampling, number)
    render = watch.lap()
    async with boundary(EngineError, f"turn {number}: generate"):
        completion = await engine.generate(
            prompt.token_ids,
            sampling=sampling,
            session=episode.record.id,
            deadline_seconds=limits.seconds,
        )
    model_call = watch.lap()
    queue = round(min(completion.queue_seconds, model_call), 6)
    async with boundary(RenderError, f"turn {number}: read the reply"):
        reply = chat.accept(completion)
    flags = repeat_flags(episode, completion)
    stop = stop_after(episode, completion, reply, limits)
    results: list[ToolResult] = []
    render, tool_calls = render + watch.lap(), 0.0
    if stop is None:
        results = await call_tools(reply.calls, tools)
        tool_calls = watch.lap()
        async with boundary(RenderError, f"turn {number}: add what follows"):
            chat.extend(what_follows(results, limits, number + 1))
        render += watch.lap()
    turn = DispatchedSamplingTask(
        record=episode.record.id,
        turn=number,
        parent=prompt.parent,
        new_messages=prompt.new_messages,
        prompt_ids_delta=prompt.delta,
        token_ids=completion.token_ids,
        logprobs=completion.logprobs,
        version_spans=completion.version_spans,
        sampling=sampling,
        finish_reason=completion.finish_reason,
        reply=reply,
        tool_results=tuple(results),
        flags=flags | turn_flags(reply, results),
        service=completion.service,
        latency_seconds=completion.latency_seconds,
        timings=Timings(render=render, queue=queue, generate=model_call - queue, tools=tool_calls),
    )
    return turn, stop


def seeded(sampling: Sampling, turn: int) -> Sampling:
    """Every turn draws from a stream of its own."""
    return sampling if sampling.seed is None else replace(sampling, seed=(sampling.seed + turn) % 2**63)


def stop_after(episode: Episode, completion: Completion, reply: Reply, limits: Limits) -> Outcome | None:
    """Whether this reply ends the episode. An answer is looked for in the content only, never in the reasoning."""
    answer = extract_answer(reply.content, schema=episode.schema)
    if answer is not None:
        episode.final_answer = answer
        return Outcome.ANSWERED
    if completion.finish_reason == "length" and not any(call.status is CallStatus.OK for call in reply.calls):
        return Outcome.LENGTH_LIMIT
    if 0 < limits.max_repeats <= episode.num_repeats:
        return Outcome.REPETITION
    if reply.calls:
        return None
    episode.num_silent += 1
    return Outcome.NO_ANSWER if episode.num_silent >= limits.max_silent_turns else None


def what_follows(results: Sequence[ToolResult], limits: Limits, num_turns: int) -> list[Message]:
    """Messages between this reply and the next: tool results in call order, or a nudge; before the last turn a notice.

    The notice ends the last tool message, because templates of strict turns refuse a user message after it.
    """
    messages = [result.as_message() for result in results]
    notice = ANSWER_NOW if limits.leaves_one_turn(num_turns) else ""
    if not messages:
        return [{"role": "user", "content": notice or NUDGE}]
    if notice:
        messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n\n{notice}"}
    return messages


def repeat_flags(episode: Episode, completion: Completion) -> frozenset[Flag]:
    """Count exact repeats of earlier replies of this episode; from the second on, each repeat is flagged."""
    said = tuple(completion.token_ids)
    if said not in episode.replies:
        episode.replies.add(said)
        return frozenset()
    episode.num_repeats += 1
    return frozenset({Flag.REPEAT_ERROR} if episode.num_repeats >= NUM_REPEATS_FLAGGED else ())


def turn_flags(reply: Reply, results: Sequence[ToolResult]) -> frozenset[Flag]:
    flags = {Flag.FORMAT_ERROR} if reply.malformed else set()
    if any(tool_failed(result) for result in results):
        flags.add(Flag.TOOL_FAILED)
    return frozenset(flags)


def tool_failed(result: ToolResult) -> bool:
    return result.status not in (ResultStatus.OK, ResultStatus.REJECTED)


async def call_tools(calls: Sequence[ToolCall], tools: ToolSession) -> list[ToolResult]:
    """Run one turn's calls together, results in call order; the first broken gateway cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(call_tool(call, tools)) for call in calls]
    except ExceptionGroup as broken:
        raise broken.exceptions[0] from broken
    return [task.result() for task in running]


async def call_tool(call: ToolCall, tools: ToolSession) -> ToolResult:
    """A bad call is the model's to repair, so it reads why; a broken gateway is ours, so the episode ends."""
    if call.status in (CallStatus.MALFORMED, CallStatus.BAD_ARGUMENTS):
        return failed(call, ResultStatus.REJECTED, f"This call could not be run: {call.reason}")
    begun = time.monotonic()
    try:
        async with boundary(GatewayError, f"call {call.name}"):
            return await tools.call(call)
    except ToolError as error:
        result = failed(call, ResultStatus(error.status), str(error))
        return replace(result, truncated=error.truncated, latency_seconds=time.monotonic() - begun)


def failed(call: ToolCall, status: ResultStatus, text: str) -> ToolResult:
    return ToolResult(call_id=call.id, name=call.name, arguments=call.arguments, status=status, content=text)
