"""Limits on calls at once: fair turns, waits that count, and places that cancellation gives back."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from agentdock.calls import Busy
from agentdock.config import ConfigProblem, DockConfig, parse_config
from agentdock.dock import Dock
from agentdock.queueing import FairQueue
from agentdock.spec import ServerSpec, Serving

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"


def odd(**serving: object) -> ServerSpec:
    return ServerSpec(name="a", command=sys.executable, args=("-S", str(ODD)), serving=Serving(**serving))  # type: ignore[arg-type]


def play(spec: ServerSpec, state_dir: Path, scene: Callable[[Dock], Awaitable[None]]) -> None:
    async def main() -> None:
        dock = Dock(DockConfig(servers=(spec,)), state_dir=state_dir)
        try:
            await dock.start()
            await scene(dock)
        finally:
            await dock.close()

    asyncio.run(main())


async def in_flight(dock: Dock, tool: str, number: int) -> None:
    """Return once so many calls of ``tool`` have come to the dock."""
    while True:
        (metric,) = (metric for metric in dock.metrics() if metric.name == "agentdock_calls_in_flight")
        if [s.value for s in metric.samples if s.labels["tool"] == tool] == [number]:
            return
        await asyncio.sleep(0.01)


def test_callers_take_turns_however_much_one_of_them_asks_for() -> None:
    async def main() -> None:
        queue, order, go = FairQueue(1), [], asyncio.Event()

        async def use(caller: str) -> None:
            async with queue.place(caller):
                order.append(caller)
                await go.wait()

        greedy = [asyncio.create_task(use("greedy")) for _ in range(6)]
        await asyncio.sleep(0)
        modest = [asyncio.create_task(use(name)) for name in ("b", "c", "b")]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(*greedy, *modest)
        assert order == ["greedy", "greedy", "b", "c", "greedy", "b", "greedy", "greedy", "greedy"]

    asyncio.run(main())


def test_whatever_is_cancelled_no_place_is_lost_and_no_limit_is_passed() -> None:
    async def main(seed: int) -> None:
        random, queue, inside, most = Random(seed), FairQueue(3), 0, 0

        async def use(caller: str) -> None:
            nonlocal inside, most
            async with queue.place(caller):
                inside += 1
                most = max(most, inside)
                try:
                    for _ in range(random.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside -= 1

        tasks = [asyncio.create_task(use(random.choice("abc"))) for _ in range(60)]
        for _ in range(40):
            await asyncio.sleep(0)
            random.choice(tasks).cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (most, inside, queue.num_waiting) == (3, 0, 0)
        for _ in range(3):
            await asyncio.wait_for(queue._enter("d"), 1)

    for seed in range(30):
        asyncio.run(main(seed))


def test_one_agents_many_calls_do_not_hold_up_another_agent(tmp_path: Path) -> None:
    order: list[str] = []

    async def scene(dock: Dock) -> None:
        async def call(session: str, run: str = "") -> None:
            await dock.call("a.slow", {}, session=session, run=run)
            order.append(run or session)

        greedy = [asyncio.create_task(call("greedy")) for _ in range(4)]
        await in_flight(dock, "a.slow", 4)
        assert dock.servers()[0].num_waiting == 3
        modest = asyncio.create_task(call("modest"))
        run = [asyncio.create_task(call(f"s{i}", "run")) for i in range(2)]
        await asyncio.gather(*greedy, modest, *run)
        assert order == ["greedy", "greedy", "modest", "run", "greedy", "run", "greedy"]

    play(odd(max_concurrency=1), tmp_path, scene)


def test_the_wait_counts_toward_the_deadline_and_says_so(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        pending = asyncio.create_task(dock.call("a.hang", {}))
        await in_flight(dock, "a.hang", 1)
        began = time.monotonic()
        with pytest.raises(Busy, match="'echo' on tool server 'a' waited to its deadline: 1 may be under way") as busy:
            await dock.call("a.echo", {}, timeout_seconds=0.3)
        assert busy.value.retryable
        assert time.monotonic() - began < 10
        pending.cancel()
        await asyncio.wait([pending])
        assert (await dock.call("a.echo", {"text": "free"})).text == "free"

    play(odd(max_concurrency=1), tmp_path, scene)


def test_a_limit_on_one_tool_leaves_the_other_tools_alone(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        pending = asyncio.create_task(dock.call("a.hang", {}))
        await in_flight(dock, "a.hang", 1)
        with pytest.raises(Busy, match="'hang' on tool server 'a' waited"):
            await dock.call("a.hang", {}, timeout_seconds=0.2)
        assert (await dock.call("a.echo", {"text": "x"})).text == "x"
        pending.cancel()
        await asyncio.wait([pending])

    play(odd(tool_concurrency={"hang": 1}), tmp_path, scene)


def test_limits_are_configured_per_server_and_per_tool() -> None:
    text = '[server.a]\ncommand = "x"\nmax_concurrency = 8\ntool_concurrency = { search = 2 }'
    serving = parse_config(text, Path("dock.toml")).servers[0].serving
    assert (serving.max_concurrency, serving.tool_concurrency) == (8, {"search": 2})
    with pytest.raises(ConfigProblem, match=r"dock\.toml:4: server\.a\.tool_concurrency\.search: is int 0; expected"):
        parse_config(text.replace("2", "0"), Path("dock.toml"))
