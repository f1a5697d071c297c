"""Plays schedules by seed, from the command line.

python tests/simulation/play.py --seed 4711                          one schedule, all rules checked after every move
python tests/simulation/play.py --schedules 100000 --record FILE     seeds 0 to 99999; stops and goes on where FILE says
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "src"), str(HERE.parent / "contract"), str(HERE)]

from store_documents import Clock  # noqa: E402
from world import World, faulty_store, play  # noqa: E402

CHECK_EVERY = 25
BLOCK = 500


@dataclass
class Score:
    """What has been played: seeds 0 to ``schedules`` - 1."""

    schedules: int = 0
    moves: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    """What was broken, by seed."""


def play_seed(runner: asyncio.Runner, seed: int, *, check_every: int = CHECK_EVERY) -> World:
    clock = Clock()
    return runner.run(play(faulty_store(clock), clock, seed, check_every=check_every))


def play_seeds(seeds: Iterable[int], score: Score) -> Score:
    """A schedule that fails is noted, and the next is played."""
    begun = time.monotonic()
    with asyncio.Runner() as runner:
        for seed in seeds:
            score.schedules += 1
            try:
                world = play_seed(runner, seed)
            except Exception as error:  # noted by seed, to be played again
                score.failed[str(seed)] = f"{type(error).__name__}: {error}"
                continue
            score.moves += len(world.trace)
            score.faults += world.faults
    score.seconds += time.monotonic() - begun
    return score


def read_score(path: Path) -> Score:
    if not path.exists():
        return Score()
    found = json.loads(path.read_text())
    return Score(**found | {"faults": Counter(found["faults"])})


def play_all(count: int, path: Path) -> Score:
    score = read_score(path)
    while score.schedules < count:
        score = play_seeds(range(score.schedules, min(count, score.schedules + BLOCK)), score)
        path.write_text(json.dumps(vars(score), indent=1) + "\n")
        print(f"{score.schedules} schedules, {len(score.failed)} failed, {score.seconds:.0f} s", flush=True)
    return score


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--seed", type=int, help="play this schedule, with all checks and its moves shown")
    chosen.add_argument("--schedules", type=int, help="play seeds 0 to N - 1")
    parser.add_argument(
        "--record", type=Path, default=Path("schedules.json"), help="where --schedules notes how far it is"
    )
    options = parser.parse_args()
    if options.seed is None:
        return 1 if play_all(options.schedules, options.record).failed else 0
    with asyncio.Runner() as runner:
        world = play_seed(runner, options.seed, check_every=1)
    print(f"{len(world.trace)} moves, all rules held: {' '.join(world.trace)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
