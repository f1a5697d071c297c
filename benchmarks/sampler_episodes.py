"""P9: turns per second of one sampler process that drives 1,000 live episodes, with a scripted engine and tool.

    python benchmarks/sampler_episodes.py [--groups 125] [--generations 8] [--turns 6] [--latency 0.02] [--profile FILE]

Engine and tool answer after ``latency`` and cost nothing, so the time is the sampler's: rendering, parsing, the store.
The ideal is every episode in flight at once: turns x 2 x latency for the whole run. ``bare`` are the same turns without
a store, one after the other: what the renderer and the parser alone would reach. The baseline plays the same episodes
with the reference's access pattern: 9 round trips and 4 writes of whole documents a turn, on SQLite too.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import resource
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from agentrl.chat import TemplateRenderer, load_renderer
from agentrl.config import AlgoOptions, RolloutOptions
from agentrl.engine.scripted import ScriptedEngine
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.group import GroupRunner
from agentrl.rollout.pace import Pace
from agentrl.rollout.sampler import MCPSampler
from agentrl.rollout.scheduler import SamplingScheduler
from agentrl.store import open_store
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.types import (
    Completion,
    DispatchedSamplingTask,
    RecordStatus,
    Sampling,
    Split,
    Task,
    ToolSpec,
    VersionSpan,
    Worker,
)

EXPRESSION = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """``turns`` model calls an episode, all but the last with one tool call; ``latency`` seconds of engine and tool."""

    groups: int = 125
    generations: int = 8
    turns: int = 6
    latency: float = 0.02

    @property
    def num_turns(self) -> int:
        return self.groups * self.generations * self.turns


@cache
def renderer() -> TemplateRenderer:
    return load_renderer(TINY_MODEL_DIR)


class LateEngine(ScriptedEngine):
    """Calls the tool until its last turn, then answers: rightly in every second slot. One wait a completion."""

    def __init__(self, load: Load) -> None:
        super().__init__(lambda *_: (), version=0)
        self._load = load
        self._said: Counter[str] = Counter()
        self.num_live = 0
        self.most_live = 0

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        self.num_live += not self._said[session]
        self.most_live = max(self.most_live, self.num_live)
        await asyncio.sleep(self._load.latency)
        turn = self._said[session]
        self._said[session] += 1
        self.num_live -= turn + 1 == self._load.turns
        return scripted(turn, self._load.turns, right=int(session.split("/")[-2]) % 2 == 0)


@cache
def scripted(turn: int, turns: int, *, right: bool) -> Completion:
    call = f'{{"name": "calculator", "arguments": {{"expression": "{turn} + 1"}}}}'
    text = f"I look it up.\n<tool_call>\n{call}\n</tool_call>" if turn + 1 < turns else f"<answer>{int(right)}</answer>"
    ids = tuple(renderer().tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False))
    span = VersionSpan(start=0, end=len(ids), version=0)
    return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), version_spans=(span,), finish_reason="stop")


class CountingStore:
    """A store that counts its round trips by verb."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.trips: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._store, name)
        if not callable(verb):
            return verb

        def counted(*args: Any, **options: Any) -> Any:
            self.trips[name] += 1
            return verb(*args, **options)

        return counted


class ReferencePatternStore(CountingStore):
    """Stores turns as the reference does: a claimed service, whole documents with the whole message list, re-reads.

    Every trip is a transaction of its own in a worker thread, as one request of a database client would be.
    """

    def __init__(self, store: Any, path: Path) -> None:
        super().__init__(store)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("CREATE TABLE document (id TEXT PRIMARY KEY, doc TEXT)")
        self._db.execute("CREATE TABLE counter (id TEXT PRIMARY KEY, count INTEGER)")
        self._db.execute("INSERT INTO counter VALUES ('service', 0)")
        self._one_at_a_time = asyncio.Lock()
        self._messages: dict[str, list[Any]] = {}
        self._links: dict[str, list[str]] = {}
        self._turns: dict[str, list[DispatchedSamplingTask]] = {}

    async def append_turn(self, claim: Any, turn: DispatchedSamplingTask) -> None:
        messages = self._messages.setdefault(turn.record, [])
        messages += turn.new_messages
        links = self._links.setdefault(turn.record, [])
        links.append(turn.id)
        logprobs = [{"token": token, "logprob": p} for token, p in zip(turn.token_ids, turn.logprobs, strict=True)]
        request = {"messages": messages, "status": "running"}
        answered = request | {"response": turn.reply.content, "logprobs": logprobs, "status": "completed"}
        await self._trip("UPDATE counter SET count = count + 1 WHERE id = 'service'")
        await self._write(turn.id, request)
        await self._write(turn.record, {"traj": links, "status": "running"})
        await self._trip("SELECT count FROM counter WHERE id = 'service'")
        await self._write(turn.id, answered)
        await self._trip("UPDATE counter SET count = count - 1 WHERE id = 'service'")
        await self._trip("SELECT doc FROM document WHERE id = ?", turn.id)
        messages.append({"role": "assistant", "content": turn.reply.content})
        await self._write(turn.id, answered | {"tools": [result.content for result in turn.tool_results]})
        await self._trip("SELECT count FROM counter WHERE id = 'split lock'")
        self._turns.setdefault(turn.record, []).append(turn)

    async def find(self, kind: str, /, **where: Any) -> list[Any]:
        """Of turns those kept here: they were written above, so the real store never saw them."""
        if kind != "turn":
            return await self._store.find(kind, **where)
        await self._trip("SELECT doc FROM document WHERE id = ?", where["record"])
        return self._turns[where["record"]]

    async def _write(self, id: str, document: dict[str, Any]) -> None:
        await self._trip("INSERT OR REPLACE INTO document VALUES (?, ?)", id, json.dumps(document))

    async def _trip(self, statement: str, *values: Any) -> None:
        self.trips["reference"] += 1
        async with self._one_at_a_time:
            await asyncio.to_thread(lambda: self._db.execute(statement, values).fetchall())


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seconds: float
    cpu_seconds: float
    num_records: int
    num_scored: int
    num_turns: int
    num_rows: int
    most_live: int
    trips: Counter[str]

    @property
    def turns_per_second(self) -> float:
        return self.num_turns / self.seconds

    @property
    def trips_per_turn(self) -> float:
        return sum(self.trips.values()) / self.num_turns


async def sample(load: Load, folder: Path, *, reference: bool = False) -> Result:
    """Play the whole stream with one ``MCPSampler`` and count what the store holds afterwards."""
    path = folder / "run.db"
    real = open_store(f"sqlite:///{path}", run="bench")
    await real.open()
    store = ReferencePatternStore(real, folder / "reference.db") if reference else CountingStore(real)
    engine = LateEngine(load)
    toolset = ScriptedToolset(
        {"calculator": ScriptedTool(reply=str, parameters=EXPRESSION, latency_seconds=load.latency)}
    )
    await toolset.open()
    runner = GroupRunner(
        store=store,  # type: ignore[arg-type]
        engine=engine,
        renderer=renderer(),
        toolset=toolset,
        rollout_options=RolloutOptions(max_turns=load.turns, max_new_tokens=256, num_generations=load.generations),
        algo_options=AlgoOptions(),
        pace=Pace(SamplingScheduler(target_concurrency=load.groups * load.generations)),
    )
    worker = Worker(id="bench", kind="sampler", host="bench", pid=1)
    await real.add_tasks(tasks(load))
    for split in (Split.TRAIN, Split.EVAL):
        await real.end_stream(split)
    try:
        begun, cpu_begun = time.perf_counter(), time.process_time()
        await MCPSampler(runner, worker, admission=None).run()
        seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
        return Result(
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            num_records=await real.count("record"),
            num_scored=await real.count("record", status=RecordStatus.SCORED),
            num_turns=load.num_turns,
            num_rows=await real.count("row"),
            most_live=engine.most_live,
            trips=store.trips,
        )
    finally:
        await real.close()


def tasks(load: Load) -> list[Task]:
    return [
        Task(task_id=str(n), query=f"What is {n} + 1?", answer="1", scorer="exact", num_slots=load.generations)
        for n in range(load.groups)
    ]


def bare_turns_per_second(load: Load, seconds: float = 1.0) -> float:
    """The same dialogue without store, engine and tool."""
    specs = (ToolSpec(name="calculator", parameters=EXPRESSION),)
    num_turns, begun = 0, time.perf_counter()
    while (spent := time.perf_counter() - begun) < seconds:
        chat = Conversation(renderer())
        chat.open([{"role": "user", "content": "What is 1 + 1?"}], specs)
        for turn in range(load.turns):
            reply = chat.accept(scripted(turn, load.turns, right=True))
            if reply.calls:
                chat.extend([{"role": "tool", "tool_call_id": reply.calls[0].id, "name": "calculator", "content": "2"}])
        num_turns += load.turns
    return num_turns / spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("groups", 125), ("generations", 8), ("turns", 6), ("latency", 0.02)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--profile", default="", help="write a cProfile of the event loop's thread to this file")
    options = vars(parser.parse_args())
    profile = cProfile.Profile() if (file := options.pop("profile")) else None
    load = Load(**options)
    renderer()
    bare = bare_turns_per_second(load)
    with tempfile.TemporaryDirectory() as folder:
        if profile is not None:
            profile.enable()
        result = asyncio.run(sample(load, Path(folder)))
        if profile is not None:
            profile.disable()
            profile.dump_stats(file)
    with tempfile.TemporaryDirectory() as folder:
        baseline = asyncio.run(sample(load, Path(folder), reference=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"live episodes      {result.most_live} at most of {load.groups * load.generations}")
    print(
        f"turns              {result.num_turns} in {result.seconds:.2f} s (latency alone: {ideal_seconds(load):.2f} s)"
    )
    print(f"turns per CPU s    {result.num_turns / result.cpu_seconds:,.0f}, writer thread included")
    print(f"turns/s            {result.turns_per_second:,.0f} (goal 1,500; renderer and parser alone: {bare:,.0f})")
    print(f"round trips/turn   {result.trips_per_turn:.2f} (goal 3): {dict(result.trips)}")
    print(
        f"reference pattern  {baseline.turns_per_second:,.0f} turns/s, {baseline.trips_per_turn:.1f} trips a turn: "
        f"ours is {result.turns_per_second / baseline.turns_per_second:.1f}x"
    )
    print(f"records            {result.num_records}, scored {result.num_scored}, rows {result.num_rows}")
    print(f"peak memory        {peak:,.0f} MB")


def ideal_seconds(load: Load) -> float:
    return load.latency * (2 * load.turns - 1)


if __name__ == "__main__":
    main()
