"""Scorers for tests, importable by worker processes: good ones and every way to be bad."""

import asyncio
import math
import os
import subprocess
import sys
import time
from typing import Any


def equal(answer: str, truth: str) -> bool:
    return answer == truth


def with_config(answer: str, truth: Any, config: dict[str, Any]) -> dict[str, Any]:
    return {"score": config.get("score", 0.5), "query": truth["query"], "level": truth["metadata"].get("level")}


async def asynchronous(answer: str, truth: str) -> float:
    await asyncio.sleep(0.3)
    return float(answer == truth)


async def sleeps_asynchronously(answer: str, truth: str) -> float:
    await asyncio.sleep(3600)
    return 1.0


def sleeps(answer: str, truth: str) -> float:
    time.sleep(3600)
    return 1.0


def spins(answer: str, truth: str) -> float:
    while True:
        pass


def exits(answer: str, truth: str) -> float:
    os._exit(7)


def exits_politely(answer: str, truth: str) -> float:
    sys.exit(3)


def kills_itself(answer: str, truth: str) -> float:
    os.kill(os.getpid(), 9)
    return 1.0


def crashes(answer: str, truth: str) -> float:
    raise KeyError("no such thing")


def returns_nan(answer: str, truth: str) -> float:
    return math.nan


def returns_text(answer: str, truth: str) -> Any:
    return "1.0"


def returns_none(answer: str, truth: str) -> Any:
    return None


def prints(answer: str, truth: str) -> float:
    print("noise on standard output" * 1000)
    os.write(1, b"raw noise")
    return 1.0


def leaves_a_child(answer: str, truth: str) -> float:
    child = subprocess.Popen(["sleep", "3600"])
    with open(answer, "w") as file:
        file.write(str(child.pid))
    time.sleep(3600)
    return 1.0


def three_or_nothing(only: str) -> float:
    return 1.0


def untrue(answer: str, truth: str) -> float:
    return float(len(answer))


untrue.needs_truth = False  # type: ignore[attr-defined]
