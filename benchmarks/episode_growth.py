"""P15: what one episode costs as its turns grow from 8 to 128: bytes stored and store time, its training row included.

    python benchmarks/episode_growth.py [--turns 8 16 32 64 128] [--tokens 400]

Each turn adds ``tokens`` to the context (half a tool result, half sampled) and is stored as a delta on its parent, so
16 times the turns may cost 16 times as much. The baseline, in the same run, stores what the reference does: each turn
with its whole message list.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.batch import build_row
from agentrl.store import open_store
from agentrl.types import (
    DispatchedSamplingTask,
    GroupVerdict,
    Outcome,
    Record,
    RecordStatus,
    Sampling,
    Score,
    Split,
    Task,
    VersionSpan,
)

GOAL = 18.0
CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    turns: int
    kilobytes: float
    milliseconds: float
    """Of every store verb the episode needs, finalising included."""


def turns_of(record: str, count: int, tokens: int) -> list[DispatchedSamplingTask]:
    rng = random.Random(0)
    half = tokens // 2
    return [
        DispatchedSamplingTask(
            record=record,
            turn=number,
            parent=number - 1 if number else None,
            prompt_ids_delta=[rng.randrange(150_000) for _ in range(half)],
            token_ids=[rng.randrange(150_000) for _ in range(half)],
            logprobs=[-rng.random() for _ in range(half)],
            version_spans=(VersionSpan(start=0, end=half, version=0),),
            sampling=Sampling(max_new_tokens=half),
            finish_reason="stop",
            new_messages=({"role": "tool", "content": text(rng, half)},),
        )
        for number in range(count)
    ]


def text(rng: random.Random, tokens: int) -> str:
    return "".join(rng.choice("abcdefghij klmnop") for _ in range(tokens * CHARS_PER_TOKEN))


async def store_cost(path: Path, count: int, tokens: int) -> Cost:
    store = open_store(f"sqlite:///{path}", run="bench")
    await store.open()
    empty = stored_bytes(path)
    await store.add_tasks([Task(task_id="t", query="q")])
    claim = await store.claim("bench", splits=[Split.TRAIN])
    assert claim is not None
    record = Record(
        task=claim.task.id,
        slot=0,
        attempt=0,
        status=RecordStatus.SCORED,
        outcome=Outcome.ANSWERED,
        scores=(Score(value=1.0),),
        num_turns=count,
    )
    turns = turns_of(record.id, count, tokens)
    begun = time.perf_counter()
    for turn in turns:
        await store.append_turn(claim, turn)
    await store.finish_record(claim, record)
    row = build_row(
        task=claim.task.id, seq=0, slot=0, record=record.id, turns=turns, turn_advantages=[1.0] * count, reward=1.0
    )
    await store.finalize_group(claim, GroupVerdict(slots={0: 1.0}), [row])
    seconds = time.perf_counter() - begun
    await store.close()
    return Cost(turns=count, kilobytes=(stored_bytes(path) - empty) / 1024, milliseconds=seconds * 1000)


def whole_message_cost(path: Path, count: int, tokens: int) -> Cost:
    """The reference's pattern: the whole message list in every turn, written when it starts and when it ends."""
    rng = random.Random(0)
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE turn (id INTEGER PRIMARY KEY, doc TEXT)")
    empty = stored_bytes(path)
    messages: list[dict[str, str]] = []
    half = tokens // 2
    begun = time.perf_counter()
    for number in range(count):
        messages.append({"role": "tool", "content": text(rng, half)})
        db.execute("INSERT INTO turn VALUES (?, ?)", (number, json.dumps({"messages": messages})))
        messages.append({"role": "assistant", "content": text(rng, half)})
        logprobs = [{"token": str(n), "logprob": -rng.random()} for n in range(half)]
        document = json.dumps({"messages": messages, "logprobs": logprobs})
        db.execute("UPDATE turn SET doc = ? WHERE id = ?", (document, number))
    seconds = time.perf_counter() - begun
    db.execute("VACUUM")
    db.close()
    return Cost(turns=count, kilobytes=(stored_bytes(path) - empty) / 1024, milliseconds=seconds * 1000)


def stored_bytes(path: Path) -> int:
    """Bytes of the pages in use, the write-ahead log folded in."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        pages, free, size = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in NAMES)
    return (pages - free) * size


NAMES = ("page_count", "freelist_count", "page_size")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--tokens", type=int, default=400, help="tokens a turn adds to the context")
    options = parser.parse_args(arguments)
    ours, whole = [], []
    for count in options.turns:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(store_cost(Path(folder) / "warm.db", count, options.tokens))
            ours.append(asyncio.run(store_cost(Path(folder) / "ours.db", count, options.tokens)))
            whole.append(whole_message_cost(Path(folder) / "whole.db", count, options.tokens))
    print(f"{'turns':>5} {'store KB':>10} {'store ms':>10} {'whole-list KB':>14} {'whole-list ms':>14}")
    for mine, theirs in zip(ours, whole, strict=True):
        print(
            f"{mine.turns:>5} {mine.kilobytes:>10,.0f} {mine.milliseconds:>10,.1f}"
            f" {theirs.kilobytes:>14,.0f} {theirs.milliseconds:>14,.1f}"
        )
    ideal = ours[-1].turns / ours[0].turns
    for name, costs in (("store", ours), ("whole message lists", whole)):
        storage = costs[-1].kilobytes / costs[0].kilobytes
        duration = costs[-1].milliseconds / costs[0].milliseconds
        print(f"{name}: {ideal:g}x the turns cost {storage:.1f}x the bytes and {duration:.1f}x the time")
    print(f"P15 (goal at most {GOAL:g}x for 16x turns, ideal {ideal:g})")


if __name__ == "__main__":
    main()
