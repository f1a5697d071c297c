"""What the gateway adds to a tool call: REST and MCP against the SDK's own client on the same server, and recovery.

python benchmarks/dock_overhead.py [--calls 500] [--at_once 32]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from agentdock.config import DockConfig, GatewayOptions
from agentdock.discovery import Token
from agentdock.dock import Dock
from agentdock.gateway.app import serving
from agentdock.spec import ServerSpec

SERVER = ("-S", str(Path(__file__).resolve().parents[1] / "tests" / "tools_servers" / "odd.py"), "--tools", "echo,pid")
HEADERS = {"Authorization": "Bearer benchmark"}
Call = Callable[[], Awaitable[Any]]


async def latencies_ms(call: Call, num_calls: int) -> list[float]:
    for _ in range(20):
        await call()
    taken = []
    for _ in range(num_calls):
        start = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - start) * 1000)
    return sorted(taken)


async def calls_per_second(call: Call, num_calls: int, at_once: int) -> float:
    async def caller() -> None:
        for _ in range(num_calls // at_once):
            await call()

    start = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(at_once)))
    return num_calls // at_once * at_once / (time.perf_counter() - start)


async def report(name: str, call: Call, args: argparse.Namespace, base: list[float] | None) -> list[float]:
    taken = await latencies_ms(call, args.calls)
    p50, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
    added = ""
    if base is not None:
        added = f", adds p50 {p50 - statistics.median(base):.2f} ms, p99 {p99 - base[int(len(base) * 0.99)]:.2f} ms"
    rate = await calls_per_second(call, args.calls * 4, args.at_once)
    print(
        f"{name}: p50 {p50:.2f} ms, p99 {p99:.2f} ms{added}; {rate:.0f} calls/s at {args.at_once} at once", flush=True
    )
    return taken


async def measure(args: argparse.Namespace) -> None:
    direct = StdioServerParameters(command=sys.executable, args=list(SERVER))
    async with Client(direct, mode="legacy") as client:
        base = await report("direct, stdio", lambda: client.call_tool("echo", {"text": "x"}), args, None)
    config = DockConfig(
        servers=(ServerSpec(name="a", command=sys.executable, args=SERVER),), gateway=GatewayOptions(port=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        dock = Dock(config, state_dir=Path(folder))
        try:
            await dock.start()
            async with (
                serving(dock, token=Token(value="benchmark", file=None)) as url,
                aiohttp.ClientSession(headers=HEADERS) as http,
            ):

                async def rest(tool: str = "echo") -> tuple[int, Any]:
                    async with http.post(f"{url}/mcpapi/tool/a.{tool}", json={"text": "x"}) as answer:
                        return answer.status, await answer.json()

                await report("REST", rest, args, base)
                for mode in ("legacy", "2026-07-28"):
                    async with (
                        httpx2.AsyncClient(headers=HEADERS, timeout=60) as mcp_http,
                        Client(streamable_http_client(f"{url}/mcp", http_client=mcp_http), mode=mode) as client,
                    ):
                        call = client.call_tool
                        await report(f"MCP {mode}", lambda call=call: call("echo", {"text": "x"}), args, base)
                os.kill(int((await rest("pid"))[1]["content"]), signal.SIGKILL)
                start = time.perf_counter()
                while (await rest())[0] != 200:
                    await asyncio.sleep(0.001)
                print(f"recovery after SIGKILL: {time.perf_counter() - start:.3f} s")
        finally:
            await dock.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--at_once", type=int, default=32)
    asyncio.run(measure(parser.parse_args()))
