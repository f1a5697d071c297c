"""P10: turns per second that the SQLite store takes, against bare sqlite3 writing the same bytes into the same tables.

    python benchmarks/store_writes.py [--turns 6400] [--writers 64] [--kilobytes 26] [--repeats 3]

``bare`` is plain sqlite3 that is given the same documents: it packs them as the store does, then writes transactions of
as many turns as there are writers, in one thread, without asyncio and without a lease to check. ``bare, commit each``
is the usual code, one transaction a turn; ``bytes only`` writes what was packed beforehand, which no user of documents
can have. The store packs on the event loop, checks the lease and hands every turn to its writer thread.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentrl.store import open_store
from agentrl.store.documents import turn_columns
from agentrl.store.schema import prepare
from agentrl.types import DispatchedSamplingTask, Sampling, Split, Task, VersionSpan

VOCABULARY = 150_000
TEXT_SHARE = 0.5
BYTES_PER_TOKEN = 9.0
"""Of a turn whose prompt delta and completion are equally long: two ids, compressed, and one raw float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    turns: int = 6400
    writers: int = 64
    kilobytes: float = 26.0

    @property
    def turns_per_writer(self) -> int:
        return self.turns // self.writers


def sample_turn(load: Load) -> DispatchedSamplingTask:
    """A turn of about ``kilobytes``: half tool text, half ids and log-probs that do not compress well."""
    rng = random.Random(0)
    size = load.kilobytes * 1024
    num_tokens = int(size * (1 - TEXT_SHARE) / BYTES_PER_TOKEN)
    words = " ".join(f"{rng.randrange(10**8):x}" for _ in range(int(size * TEXT_SHARE / 8)))
    return DispatchedSamplingTask(
        record="",
        turn=0,
        parent=None,
        prompt_ids_delta=[rng.randrange(VOCABULARY) for _ in range(num_tokens)],
        token_ids=[rng.randrange(VOCABULARY) for _ in range(num_tokens)],
        logprobs=[-rng.random() for _ in range(num_tokens)],
        version_spans=(VersionSpan(start=0, end=num_tokens, version=0),),
        sampling=Sampling(max_new_tokens=num_tokens),
        finish_reason="stop",
        new_messages=({"role": "tool", "content": words},),
    )


def of_slot(turn: DispatchedSamplingTask, task: str, slot: int, number: int) -> DispatchedSamplingTask:
    return replace(turn, record=f"{task}/{slot}/0", turn=number, parent=number - 1 if number else None)


async def store_seconds(path: Path, load: Load, turn: DispatchedSamplingTask) -> float:
    store = open_store(f"sqlite:///{path}", run="bench")
    await store.open()
    try:
        await store.add_tasks([Task(task_id="t", query="q", num_slots=load.writers)])
        claim = await store.claim("bench", splits=[Split.TRAIN])
        assert claim is not None

        async def write(slot: int) -> None:
            for number in range(load.turns_per_writer):
                await store.append_turn(claim, of_slot(turn, claim.task.id, slot, number))

        begun = time.perf_counter()
        await asyncio.gather(*map(write, range(load.writers)))
        return time.perf_counter() - begun
    finally:
        await store.close()


def bare_seconds(path: Path, load: Load, turn: DispatchedSamplingTask, *, batch: int, packs: bool = True) -> float:
    """The same tables and bytes, ``batch`` turns a transaction, each with the update of its record."""
    ready = turn_columns(turn)
    db = prepare(path)
    db.execute("BEGIN")
    for slot in range(load.writers):
        db.execute(
            "INSERT INTO record (run, id, task, slot, attempt, claim_no, round, status, reason, created_at, updated_at,"
            " doc) VALUES ('bench', ?, 't', ?, 0, 1, 0, 'running', '', 0, 0, '{}')",
            (f"t/{slot}/0", slot),
        )
    db.execute("COMMIT")
    places = [(slot, number) for number in range(load.turns_per_writer) for slot in range(load.writers)]
    begun = time.perf_counter()
    for first in range(0, len(places), batch):
        db.execute("BEGIN IMMEDIATE")
        for slot, number in places[first : first + batch]:
            packed = turn_columns(of_slot(turn, "t", slot, number)) if packs else ready
            db.execute(
                "INSERT INTO turn (run, record, turn, claim_no, status, created_at, updated_at, doc, prompt_ids,"
                " token_ids, logprobs) VALUES ('bench', ?, ?, 1, 'completed', 0, 0, ?, ?, ?, ?)",
                (f"t/{slot}/0", number, *packed),
            )
            db.execute("UPDATE record SET updated_at = ? WHERE run = 'bench' AND id = ?", (number, f"t/{slot}/0"))
        db.execute("COMMIT")
    seconds = time.perf_counter() - begun
    db.close()
    return seconds


def packing_seconds(load: Load, turn: DispatchedSamplingTask) -> float:
    begun = time.perf_counter()
    for number in range(load.turns):
        turn_columns(replace(turn, turn=number))
    return time.perf_counter() - begun


def fresh(measure: Callable[[Path], float]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder) / "run.db")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=6400)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--kilobytes", type=float, default=26.0, help="stored bytes of one turn")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    load = Load(turns=options.turns, writers=options.writers, kilobytes=options.kilobytes)
    turn = sample_turn(load)
    stored = sum(len(part) for part in turn_columns(turn)) / 1024
    ways: dict[str, Callable[[Path], float]] = {
        "bare": lambda path: bare_seconds(path, load, turn, batch=load.writers),
        "bare, commit each": lambda path: bare_seconds(path, load, turn, batch=1),
        "bytes only": lambda path: bare_seconds(path, load, turn, batch=load.writers, packs=False),
        "store": lambda path: asyncio.run(store_seconds(path, load, turn)),
    }
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.repeats):
        for name, measure in ways.items():
            rates[name].append(load.turns / fresh(measure))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    print(f"{load.turns} turns of {stored:.1f} KB, {load.writers} writers, median of {options.repeats}")
    for name, rate in medians.items():
        print(f"{name:<18} {rate:>9,.0f} turns/s   {rate / medians['bare']:.2f} of bare")
    print(f"{'packing alone':<18} {load.turns / packing_seconds(load, turn):>9,.0f} turns/s")
    print(f"P10: {medians['store'] / medians['bare']:.2f} of bare sqlite3 (goal 0.8, ideal 1)")


if __name__ == "__main__":
    main()
