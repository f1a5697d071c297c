"""Scripted models that play real groups: store file, tokenizer and template are those of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.chat import TemplateRenderer, load_renderer
from agentrl.config import AlgoOptions, RolloutOptions
from agentrl.engine.scripted import ScriptedEngine
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.rollout.group import GroupRunner
from agentrl.rollout.pace import Pace
from agentrl.rollout.sampler import MCPSampler
from agentrl.rollout.scheduler import SamplingScheduler
from agentrl.store import Store, open_store
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.types import (
    Claim,
    Completion,
    DBRecordData,
    DispatchedSamplingTask,
    GroupVerdict,
    Record,
    Sampling,
    Split,
    Task,
    Worker,
)

END = "<|im_end|>"
RUN = "r"
WORKER = Worker(id="w", kind="sampler", host="h", pid=1)
CALCULATOR = ScriptedTool(
    reply=lambda arguments: str(sum(int(term) for term in arguments["expression"].split("+"))),
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)

Said = str | Exception | Callable[[], Any]
"""One reply: its text (a text without the end token was cut by its length), or what breaks instead."""


@cache
def tiny_renderer(template: str = "") -> TemplateRenderer:
    """The small model's own renderer, or its tokenizer with a template of ``chat_templates``."""
    if not template:
        return load_renderer(TINY_MODEL_DIR)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(TINY_MODEL_DIR))
    tokenizer.chat_template = (Path(__file__).parent / "chat_templates" / f"{template}.jinja").read_text()
    return TemplateRenderer(tokenizer)


def call(name: str = "calculator", arguments: str = '{"expression": "1+2"}') -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def answer(text: str = "3") -> str:
    return f"<answer>{text}</answer>"


class Model(ScriptedEngine):
    """Says ``replies[slot]`` (or those of slot None), one a turn, the last one for ever; keeps what it served.

    A reply is ended by the end token unless ``cut`` names its text: such a reply is what ``max_new_tokens`` left of it.
    ``spelled`` samples letter by letter, as no tokenizer would write the text. ``asked`` are the sessions of all
    calls, ``served`` (session, prompt ids, completion) of those that gave one.
    """

    def __init__(
        self,
        replies: Mapping[int | None, Sequence[Said]] | Sequence[Said],
        *,
        renderer: TemplateRenderer | None = None,
        cut: Sequence[str] = (),
        spelled: bool = False,
        max_context: int = 1 << 20,
        **options: Any,
    ) -> None:
        super().__init__(self._next_reply, version=0, max_context=max_context, logprobs=odd_logprobs, **options)
        self._replies = replies if isinstance(replies, Mapping) else {None: replies}
        self._tokenizer = (renderer or tiny_renderer()).tokenizer
        self._cut = cut
        self._spelled = spelled
        self._num_said: dict[str, int] = {}
        self.asked: list[str] = []
        self.served: list[tuple[str, list[int], Completion]] = []

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        self.asked.append(session)
        text = self._said(session)
        if isinstance(text, Exception):
            raise text
        if callable(text):
            await text()
        completion = await super().generate(
            prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds
        )
        if text in self._cut:
            completion = without_end(completion)
        self._num_said[session] = self._num_said.get(session, 0) + 1
        self.served.append((session, list(prompt_ids), completion))
        return completion

    def _said(self, session: str) -> Said:
        slot = int(session.split("/")[-2])
        replies = self._replies.get(slot, self._replies.get(None, (answer(),)))
        return replies[min(self._num_said.get(session, 0), len(replies) - 1)]

    def _next_reply(self, prompt_ids: Sequence[int], session: str, sampling: Sampling) -> Sequence[int]:
        said = self._said(session)
        text = said if isinstance(said, str) else answer()
        end = self._tokenizer.convert_tokens_to_ids(END)
        if self._spelled:
            return [*(id for letter in text for id in self._tokenizer.encode(letter, add_special_tokens=False)), end]
        return [*self._tokenizer.encode(text, add_special_tokens=False), end]


def odd_logprobs(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Sequence[float]:
    """A number of its own for every place, so that one that is moved by a token is seen; exact in float32."""
    return [-(1 + (len(prompt_ids) + i) % 1000) / 1024 for i in range(len(token_ids))]


def without_end(completion: Completion) -> Completion:
    """The same completion, stopped by its length before the end token."""
    spans = tuple(replace(span, end=min(span.end, len(completion.token_ids) - 1)) for span in completion.version_spans)
    return replace(
        completion,
        token_ids=completion.token_ids[:-1],
        logprobs=completion.logprobs[:-1],
        version_spans=spans,
        finish_reason="length",
    )


def a_task(task_id: str = "t", *, num_slots: int = 1, split: Split = Split.TRAIN, **fields: Any) -> Task:
    values: dict[str, Any] = {"query": "What is 1+2?", "answer": "3", "scorer": "exact"} | fields
    return Task(task_id=task_id, split=split, num_slots=num_slots, **values)


@dataclass(slots=True, kw_only=True)
class World:
    """Everything a sampler process has, around one store file."""

    store: Store
    engine: ScriptedEngine
    toolset: ScriptedToolset
    runner: GroupRunner
    told: list[Record] = field(default_factory=list)

    async def claim(self, task: Task) -> Claim:
        await self.store.add_tasks([task])
        claim = await self.store.claim(WORKER.id, splits=tuple(Split))
        assert claim is not None
        return claim

    async def play(self, task: Task) -> GroupVerdict:
        return await self.runner.run(await self.claim(task))

    def sampler(self, num_episodes: int = 2, **options: Any) -> MCPSampler:
        """At most ``num_episodes`` run at once; a group counts as 2 of them."""
        self.runner.pace.scheduler.max_episodes = num_episodes
        return MCPSampler(self.runner, WORKER, **{"admission": None} | options)

    async def push(self, tasks: Sequence[Task]) -> None:
        """The whole stream of a run."""
        await self.store.add_tasks(tasks)
        for split in (Split.TRAIN, Split.EVAL):
            await self.store.end_stream(split)

    async def records(self) -> list[Record]:
        return await self.store.find("record")

    async def turns(self, record: str | None = None) -> list[DispatchedSamplingTask]:
        return await self.store.find("turn", **({} if record is None else {"record": record}))

    async def rows(self) -> list[DBRecordData]:
        return await self.store.find("row")


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one group left in the store."""

    world: World
    verdict: GroupVerdict
    records: list[Record]
    turns: list[DispatchedSamplingTask]
    rows: list[DBRecordData]

    @property
    def record(self) -> Record:
        """The only record there is."""
        (record,) = self.records
        return record

    @property
    def contents(self) -> list[str]:
        """Texts of the messages that were added to the conversation, turn by turn."""
        return [message["content"] for turn in self.turns for message in turn.new_messages]


def in_world(
    folder: Path,
    scenario: Callable[[World], Any],
    engine: ScriptedEngine,
    *,
    tools: Mapping[str, Any] | ScriptedToolset | None = None,
    renderer: TemplateRenderer | None = None,
    algo: AlgoOptions | None = None,
    store: Callable[[Store], Store] = lambda store: store,
    concurrency: int = 64,
    **options: Any,
) -> Any:
    """Run ``scenario`` in a new world; ``options`` are those of rollouts."""
    given = tools if isinstance(tools, ScriptedToolset) else ScriptedToolset(tools or {"calculator": CALCULATOR})

    async def run() -> Any:
        real = open_store(f"sqlite:///{folder / 'run.db'}", run=RUN)
        await real.open()
        await given.open()
        told: list[Record] = []
        runner = GroupRunner(
            store=store(real),
            engine=engine,
            renderer=renderer or tiny_renderer(),
            toolset=given,
            rollout_options=RolloutOptions(**{"max_new_tokens": 512, "max_turns": 6, "num_generations": 2} | options),
            algo_options=algo or AlgoOptions(),
            pace=Pace(SamplingScheduler(target_concurrency=concurrency, max_episodes=concurrency)),
            default_prompt=False,
            on_record=told.append,
        )
        try:
            await real.heartbeat(WORKER)
            world = World(store=real, engine=engine, toolset=given, runner=runner, told=told)
            return await asyncio.wait_for(scenario(world), 100)
        finally:
            await real.close()

    return asyncio.run(run())


def play(folder: Path, engine: ScriptedEngine, *, task: Task | None = None, **options: Any) -> Played:
    """One group from its claim to what it left in the store."""

    async def scenario(world: World) -> Played:
        verdict = await world.play(task or a_task())
        return Played(
            world=world,
            verdict=verdict,
            records=await world.records(),
            turns=await world.turns(),
            rows=await world.rows(),
        )

    return in_world(folder, scenario, engine, **options)
