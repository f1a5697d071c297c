"""P16, the store's part: what a claim costs behind many finished groups.

    python benchmarks/store_claims.py [--finished 0 10000 100000] [--claims 400] [--running 512]

Claims go through the store, as a sampler's do. ``counting`` is the admission rule with its terms counted over the tasks
of the same database: what the rule costs when it is derived from rows with every claim.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.store import Admission, open_store, registry
from agentrl.store.documents import task_text
from agentrl.store.schema import prepare
from agentrl.types import Split, Task, WeightVersion

GROUPS_PER_STEP = 512
COUNTING = """SELECT (SELECT count(*) FROM task WHERE run = 'bench' AND split = 'train' AND status = 'abandoned')
    + (SELECT count(*) FROM task WHERE run = 'bench' AND split = 'train' AND status = 'completed'
       AND phase IN ('empty', 'dropped'))
    + (SELECT coalesce(sum(times_stale), 0) FROM task WHERE run = 'bench' AND split = 'train')"""


def write_run(path: Path, *, finished: int, running: int, free: int) -> None:
    """One group in ten was abandoned, one in five left nothing to train; ``running`` are owned by a live sampler."""
    db = prepare(path)
    num_tasks = finished + running + free
    tasks = [Task(task_id=f"q{number}", query="q", run="bench") for number in range(num_tasks)]
    db.execute("BEGIN")
    registry.add_tasks(db, "bench", [(task, task_text(task)) for task in tasks], 0.0)
    db.execute(
        """UPDATE task SET claim_no = 1, status = CASE WHEN seq % 10 = 0 THEN 'abandoned' ELSE 'completed' END,
            phase = CASE WHEN seq % 10 = 0 THEN '' WHEN seq % 5 = 1 THEN 'empty' ELSE 'trained' END WHERE seq < ?""",
        (finished,),
    )
    db.execute(
        "UPDATE task SET status = 'running', owner = 'busy', claim_no = 1 WHERE seq BETWEEN ? AND ?",
        (finished, finished + running - 1),
    )
    registry.note_claimer(db, "bench", "busy", time.time())
    step = num_tasks // GROUPS_PER_STEP + 1
    registry.publish_version(db, "bench", WeightVersion(version=step, step=step, parent=None), "{}", 0.0)
    db.execute("COMMIT")
    db.close()


async def claim_seconds(path: Path, num_claims: int) -> list[float]:
    store = open_store(f"sqlite:///{path}", run="bench")
    await store.open()
    admission = Admission(groups_per_step=GROUPS_PER_STEP, max_staleness=1)
    seconds = []
    for _ in range(num_claims):
        begun = time.perf_counter()
        claim = await store.claim("w", splits=(Split.EVAL, Split.TEST, Split.TRAIN), admission=admission)
        seconds.append(time.perf_counter() - begun)
        assert claim is not None
    await store.close()
    return seconds


def counting_seconds(path: Path, repeats: int = 20) -> list[float]:
    db = prepare(path)
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        db.execute(COUNTING).fetchone()
        seconds.append(time.perf_counter() - begun)
    db.close()
    return seconds


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--finished", type=int, nargs="+", default=[0, 10_000, 100_000])
    parser.add_argument("--claims", type=int, default=400)
    parser.add_argument("--running", type=int, default=512)
    options = parser.parse_args(arguments)
    print(f"{options.claims} claims, {options.running} groups running, median")
    for finished in options.finished:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "run.db"
            write_run(path, finished=finished, running=options.running, free=options.claims)
            claims = statistics.median(asyncio.run(claim_seconds(path, options.claims)))
            counting = statistics.median(counting_seconds(path))
        print(f"{finished:>8,} finished: claim {claims * 1e6:>7,.0f} us   counting alone {counting * 1e6:>9,.0f} us")


if __name__ == "__main__":
    main()
