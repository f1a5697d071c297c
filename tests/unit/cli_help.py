"""What commands wire together, built from flags: scripted model and tools; store, tokenizer and template are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.cli.feed import evaluation_tasks, training_tasks
from agentrl.cli.presence import this_worker
from agentrl.cli.sample import build_sampler
from agentrl.config import RunConfig
from agentrl.engine.scripted import ScriptedEngine
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.rollout.sampler import MCPSampler
from agentrl.store import Store, open_store
from agentrl.telemetry import Telemetry
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.types import DispatchedSamplingTask, Record, Split, Task, WeightVersion

CALL = '<tool_call>\n{"name": "sum", "arguments": {}}\n</tool_call>'
ANSWER = "<answer>3</answer>"
SUM = ScriptedTool(reply="3", server="first")

Say = Callable[[str, int], str]
"""``(record, turn) -> text`` that the model says."""


def configured(folder: Path, *flags: str) -> RunConfig:
    """A run of the small model in ``folder``; its options are sized for it."""
    small = ["--max_new_tokens=64", "--max_turns=4", "--num_generations=2", "--max_prompt_tokens=2000"]
    place = ["--run_name=r", f"--output_dir={folder}", f"--model_name_or_path={TINY_MODEL_DIR}", "--device=cpu"]
    return RunConfig.parse([*small, *place, *flags], command="test")


def questions(count: int = 1, **fields: Any) -> list[Task]:
    values: dict[str, Any] = {"query": "What is 1+2?", "answer": "3", "scorer": "exact"}
    return [Task(task_id=f"q{number}", **values | fields) for number in range(count)]


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(TINY_MODEL_DIR))


def answers_by_slot(record: str, turn: int) -> str:
    """Odd slots are right."""
    return ANSWER if int(record.split("/")[-2]) % 2 else "<answer>0</answer>"


class Speaker(ScriptedEngine):
    """Says ``say(record, turn)``; keeps the sampling values of every request, and how many ran at once."""

    def __init__(self, say: Say, *, seconds: float = 0.0) -> None:
        super().__init__(self._reply, version=0)
        self._say, self._seconds = say, seconds
        self._turns: dict[str, int] = {}
        self.asked: list[Any] = []
        self.now = self.most = 0

    async def generate(self, prompt_ids: Sequence[int], **request: Any) -> Any:
        self.asked.append(request["sampling"])
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self._seconds)
            return await super().generate(prompt_ids, **request)
        finally:
            self.now -= 1

    def _reply(self, prompt_ids: Sequence[int], session: str, sampling: Any) -> list[int]:
        turn = self._turns[session] = self._turns.get(session, -1) + 1
        return tokenizer().encode(self._say(session, turn) + "<|im_end|>", add_special_tokens=False)

    def prompts_as_text(self) -> list[str]:
        return [tokenizer().decode(ids) for _, ids in self.prompts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    engine: Speaker
    sampler: MCPSampler
    records: list[Record]
    turns: list[DispatchedSamplingTask]
    rows: list[Any]
    tasks: list[Task]

    @property
    def outcomes(self) -> list[str]:
        return [str(record.outcome) for record in self.records]


def play(
    folder: Path,
    *flags: str,
    say: Say = answers_by_slot,
    train: Sequence[Task] = (),
    held_out: Sequence[Task] = (),
    tools: Mapping[str, ScriptedTool] | None = None,
    seconds: float = 0.0,
    stop_after: float | None = None,
) -> Played:
    """A whole sampler on its stream of tasks; ``stop_after`` ends one that waits for ever."""
    config = configured(folder, *flags)

    async def run() -> Played:
        async with opened(config) as store:
            await store.publish_version(WeightVersion(version=0, step=0, parent=None))
            given = list(train) if train or held_out else questions()
            await store.add_tasks([*training_tasks(config, given), *evaluation_tasks(config, held_out, 0)])
            for split in (Split.TRAIN, Split.EVAL):
                await store.end_stream(split)
            toolset = ScriptedToolset(tools or {"sum": SUM})
            await toolset.open()
            engine = Speaker(say, seconds=seconds)
            sampler = build_sampler(config, store, engine, toolset, Telemetry([]), this_worker("sampler"))
            with suppress(TimeoutError):
                await asyncio.wait_for(sampler.run(), stop_after or 20.0)
            return Played(
                engine=engine,
                sampler=sampler,
                records=await store.find("record"),
                turns=await store.find("turn"),
                rows=await store.find("row"),
                tasks=await store.find("task"),
            )

    return asyncio.run(run())


@asynccontextmanager
async def opened(config: RunConfig) -> AsyncIterator[Store]:
    store = open_store(config.store_url, run=config.run.run_name)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


def with_store(config: RunConfig, scenario: Callable[[Store], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        async with opened(config) as store:
            return await scenario(store)

    return asyncio.run(run())
