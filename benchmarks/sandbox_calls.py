"""Latency and rate of sandboxed calls in each tier, beside a bare ``python -I`` subprocess in the same run.

``python benchmarks/sandbox_calls.py [--calls 40] [--image IMAGE]``; a tier that is missing is named with its reason.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from agentdock.sandbox.limits import Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS, TierMissing

CODE = "print(sum(range(1000)))"
PRINTED = "499500\n"
PARALLEL = (1, 2, 4, 8)
Call = Callable[[], Awaitable[str]]


async def bare() -> str:
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", CODE, stdout=asyncio.subprocess.PIPE)
    stdout, _ = await process.communicate()
    return stdout.decode()


def sandboxed(sandbox: Sandbox) -> Call:
    async def call() -> str:
        return (await sandbox.run(CODE)).stdout

    return call


async def measured(call: Call, *, calls: int, parallel: int) -> tuple[list[float], float]:
    """Seconds of each call, and calls per second, with ``parallel`` callers."""
    left = iter(range(calls))
    seconds: list[float] = []

    async def caller() -> None:
        for _ in left:
            began = time.perf_counter()
            printed = await call()
            seconds.append(time.perf_counter() - began)
            if printed != PRINTED:
                raise RuntimeError(f"the call printed {printed!r}, not {PRINTED!r}")

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(parallel)))
    return seconds, calls / (time.perf_counter() - began)


async def show(name: str, call: Call, calls: int) -> None:
    await call()
    for parallel in PARALLEL:
        seconds, rate = await measured(call, calls=calls, parallel=parallel)
        p50, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
        per_core = rate / (os.cpu_count() or 1)
        print(
            f"{name:<11} parallel {parallel}  p50 {p50 * 1000:6.1f} ms  p95 {p95 * 1000:6.1f} ms  "
            f"{rate:6.1f} calls/s  {per_core:5.1f} per core",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--image", default="")
    options = parser.parse_args()
    await show("subprocess", bare, options.calls)
    for tier in TIERS:
        sandbox = Sandbox(Limits(), parallel=max(PARALLEL), tiers=(tier,), min_tier=tier, image=options.image)
        try:
            held = (await sandbox.choice()).containment
        except TierMissing as missing:
            print(f"{tier:<11} {missing}")
            continue
        print(f"{tier:<11} own user {held.own_user}, network {held.network}, readable {held.readable}")
        await show(tier, sandboxed(sandbox), options.calls)


if __name__ == "__main__":
    asyncio.run(main())
