"""Servers that die, hang, lie or never start, played with real processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agentdock.spec import MissingVariable
from agentdock.supervisor import (
    CallRefused,
    CallTimeout,
    RestartPolicy,
    ServerDied,
    ServerFailed,
    ServerSpec,
    ServerState,
    Supervisor,
)

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
FAST = RestartPolicy(first_backoff_seconds=0.02)


def odd(name: str, *args: str) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=(str(ODD), *args))


def play(supervisor: Supervisor, scene: Callable[[Supervisor], Awaitable[None]]) -> None:
    async def main() -> None:
        async with supervisor:
            await scene(supervisor)

    asyncio.run(main())


async def text_of(supervisor: Supervisor, server: str, tool: str, text: str = "", seconds: float = 5) -> str:
    return (await supervisor.call(server, tool, {"text": text}, timeout_seconds=seconds)).text


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


async def gone(pid: int, seconds: float = 2) -> bool:
    for _ in range(int(seconds / 0.02)):
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


def pid_of(supervisor: Supervisor, server: str) -> int:
    (pid,) = (status.pid for status in supervisor.status() if status.name == server)
    assert pid is not None
    return pid


def test_death_in_a_call_names_the_server_and_the_next_call_works(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        assert await supervisor.start() == {}
        other = asyncio.create_task(text_of(supervisor, "b", "slow", "unmoved"))
        began = time.monotonic()
        with pytest.raises(ServerDied, match="tool server 'a' exited with code 7 during a call to 'die'") as died:
            await text_of(supervisor, "a", "die")
        assert died.value.server == "a"
        assert time.monotonic() - began < 1
        assert await text_of(supervisor, "a", "echo", "back") == "back"
        assert await other == "unmoved"
        assert not supervisor.failed.is_set()

    play(Supervisor([odd("a"), odd("b")], policy=FAST), scene)


def test_a_server_killed_from_outside_in_a_call_ends_that_call_at_once() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        pending = asyncio.create_task(text_of(supervisor, "a", "hang"))
        await asyncio.sleep(0.1)
        began = time.monotonic()
        os.kill(pid_of(supervisor, "a"), signal.SIGKILL)
        with pytest.raises(ServerDied, match="killed by signal 9"):
            await pending
        assert time.monotonic() - began < 1

    play(Supervisor([odd("a")], policy=FAST), scene)


def test_a_server_that_restarts_while_idle_is_there_for_the_next_call() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        first = pid_of(supervisor, "a")
        os.kill(first, signal.SIGKILL)
        assert await gone(first)
        await asyncio.sleep(0.05)
        assert await text_of(supervisor, "a", "echo", "x") == "x"
        assert pid_of(supervisor, "a") != first
        assert supervisor.status()[0].restarts == 0

    play(Supervisor([odd("a")], policy=FAST), scene)


def test_a_hanging_call_ends_at_its_deadline_and_is_cancelled_on_the_server(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        with pytest.raises(CallTimeout, match=r"'hang' on tool server 'a' gave no answer within 0\.3 s"):
            await text_of(supervisor, "a", "hang", seconds=0.3)
        pending = asyncio.create_task(text_of(supervisor, "a", "hang"))
        await asyncio.sleep(0.1)
        pending.cancel()
        await asyncio.wait([pending])
        assert await text_of(supervisor, "a", "echo", "free") == "free"
        assert calls.read_text().splitlines().count("cancelled") == 2

    play(Supervisor([odd("a", "--calls", str(calls))]), scene)


def test_a_server_without_a_sign_of_life_after_a_timeout_is_restarted() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        first = pid_of(supervisor, "a")
        with pytest.raises(CallTimeout):
            await text_of(supervisor, "a", "deaf", seconds=0.2)
        assert await gone(first)
        assert await text_of(supervisor, "a", "echo", "again") == "again"

    play(Supervisor([replace(odd("a"), start_timeout_seconds=0.8)], policy=FAST), scene)


def test_three_failed_restarts_in_a_row_end_the_server_and_say_so(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    async def scene(supervisor: Supervisor) -> None:
        assert await supervisor.start() == {}
        with pytest.raises(ServerDied):
            await text_of(supervisor, "a", "die")
        await asyncio.wait_for(supervisor.failed.wait(), 5)
        assert supervisor.failure is not None
        assert "'a' failed 3 restarts" in str(supervisor.failure)
        assert "broken since the last deployment" in str(supervisor.failure)
        with pytest.raises(ServerFailed, match="3 restarts"):
            await text_of(supervisor, "a", "echo")
        assert await text_of(supervisor, "b", "echo", "fine") == "fine"
        assert [status.state for status in supervisor.status()] == [ServerState.FAILED, ServerState.READY]
        assert len(starts.read_text().splitlines()) == 4

    broken = odd("a", "--starts", str(starts), "--die-from-start", "2")
    play(Supervisor([broken, odd("b")], policy=FAST), scene)


def test_an_answered_call_clears_the_count_of_restarts() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        for _ in range(5):
            with pytest.raises(ServerDied):
                await text_of(supervisor, "a", "die")
            assert await text_of(supervisor, "a", "echo", "x") == "x"
        assert not supervisor.failed.is_set()

    play(Supervisor([odd("a")], policy=FAST), scene)


def test_of_three_servers_the_one_that_cannot_start_is_named_and_the_others_work(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        reasons = await supervisor.start()
        assert set(reasons) == {"b", "c"}
        assert "exited with code 1" in reasons["b"]
        assert "no licence" in reasons["b"]
        assert "no-such-command" in reasons["c"]
        assert not supervisor.failed.is_set()
        assert await text_of(supervisor, "a", "echo", "x") == "x"
        states = {status.name: (status.state, status.reason) for status in supervisor.status()}
        assert states["a"][0] is ServerState.READY
        assert states["b"] == (ServerState.FAILED, reasons["b"])
        assert "no licence" in (tmp_path / "b.log").read_text()

    specs = [odd("a"), odd("b", "--die-at-start", "no licence"), ServerSpec(name="c", command="no-such-command")]
    play(Supervisor(specs, log_dir=tmp_path), scene)


def test_a_server_that_never_answers_fails_at_its_start_deadline() -> None:
    async def scene(supervisor: Supervisor) -> None:
        began = time.monotonic()
        reasons = await supervisor.start()
        assert "did not answer within 0.4 s" in reasons["a"]
        assert time.monotonic() - began < 2

    play(Supervisor([replace(odd("a", "--silent"), start_timeout_seconds=0.4)]), scene)


def test_stopping_does_not_wait_for_a_server_that_is_still_starting() -> None:
    async def main() -> None:
        supervisor = Supervisor([odd("a", "--silent")])
        starting = asyncio.create_task(supervisor.start())
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await supervisor.stop()
        assert time.monotonic() - began < 1
        assert "stopped" in (await starting)["a"]

    asyncio.run(main())


def test_a_server_sees_the_declared_environment_and_path_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "s")
    monkeypatch.setenv("TOKEN", "t")

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        seen = json.loads(await text_of(supervisor, "a", "env"))
        seen.pop("LC_CTYPE", None)
        assert seen == {"PATH": os.environ["PATH"], "KEY": "t", "MODE": "plain"}

    play(Supervisor([replace(odd("a"), env={"KEY": "${TOKEN}", "MODE": "${MODE_OF_A:-plain}"})]), scene)


def test_missing_variables_are_named_with_their_place() -> None:
    spec = ServerSpec(name="web", command="x", args=("--key", "${NOPE_1}"), env={"K": "${NOPE_2}"})
    with pytest.raises(MissingVariable, match=r"'web'.*NOPE_1 \(in args\[1\]\), NOPE_2 \(in env.K\)"):
        spec.resolved({})

    async def scene(supervisor: Supervisor) -> None:
        assert "NOPE_1" in (await supervisor.start())["web"]

    play(Supervisor([spec]), scene)


@pytest.mark.parametrize("repeat", [False, True], ids=["ends", "cursor_repeats"])
def test_all_pages_are_read_and_a_repeating_cursor_ends(repeat: bool) -> None:
    names = [f"t{i}" for i in range(7)]

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        assert [tool.name for tool in supervisor.tools()["a"]] == names

    options = ["--tools", ",".join(names), "--pages", "3", *(["--repeat-cursor"] if repeat else [])]
    play(Supervisor([odd("a", *options)]), scene)


def test_a_line_that_is_no_json_does_not_break_the_connection() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        assert await text_of(supervisor, "a", "garbage", "x") == "x"

    play(Supervisor([odd("a")]), scene)


def test_stopping_ends_the_whole_process_group_and_calls_under_way() -> None:
    async def main() -> None:
        supervisor = Supervisor([odd("a")])
        await supervisor.start()
        server, child = pid_of(supervisor, "a"), int(await text_of(supervisor, "a", "child"))
        pending = asyncio.create_task(text_of(supervisor, "a", "hang"))
        await asyncio.sleep(0.05)
        await supervisor.stop()
        with pytest.raises(ServerDied):
            await pending
        assert await gone(server)
        assert await gone(child)
        with pytest.raises(ServerFailed, match="not running"):
            await text_of(supervisor, "a", "echo")

    asyncio.run(main())


def test_children_of_a_server_that_died_are_reaped() -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        child = int(await text_of(supervisor, "a", "child"))
        os.kill(pid_of(supervisor, "a"), signal.SIGKILL)
        assert await gone(child)

    play(Supervisor([odd("a")], policy=FAST), scene)


def test_nothing_is_left_when_the_supervising_process_is_killed() -> None:
    code = f"""
import asyncio, sys
from agentdock.supervisor import ServerSpec, Supervisor
async def main():
    supervisor = Supervisor([ServerSpec(name="a", command=sys.executable, args=({str(ODD)!r},))])
    await supervisor.start()
    child = (await supervisor.call("a", "child", {{}}, timeout_seconds=5)).text
    print(supervisor.status()[0].pid, child, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    assert all(alive(pid) for pid in pids)
    process.kill()
    process.wait()
    process.stdout.close()
    assert asyncio.run(gone(pids[0]))
    assert asyncio.run(gone(pids[1]))


def test_a_cancelled_supervising_task_leaves_no_process() -> None:
    pids: list[int] = []

    async def main() -> None:
        supervisor = Supervisor([odd("a")])
        await supervisor.start()
        pids.append(pid_of(supervisor, "a"))

    asyncio.run(main())
    assert asyncio.run(gone(pids[0]))


def test_the_protocol_error_of_a_server_is_refusal_not_death(tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        with pytest.raises(CallRefused, match="tool server 'a' refused 'calculator'"):
            await supervisor.call("a", "calculator", {}, timeout_seconds=5)

    script = tmp_path / "refusing.py"
    script.write_text(ODD.read_text().replace('"tools/call"', '"tools/none"'))
    play(Supervisor([ServerSpec(name="a", command=sys.executable, args=(str(script),))]), scene)


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tool servers are named a"):
        Supervisor([odd("a"), odd("b"), odd("a")])


@pytest.mark.ci
def test_under_random_kills_every_call_ends_and_says_how() -> None:
    random = Random(7)
    policy = RestartPolicy(first_backoff_seconds=0.01, max_restarts=100)
    ends: Counter[str] = Counter()

    async def one(supervisor: Supervisor) -> None:
        try:
            ends[await text_of(supervisor, "a", random.choice(["echo", "slow"]), "answered")] += 1
        except ServerDied:
            ends["died"] += 1

    async def kill_often(supervisor: Supervisor) -> None:
        while True:
            await asyncio.sleep(random.random() * 0.5)
            pid = supervisor.status()[0].pid
            if pid is not None:
                os.kill(pid, random.choice([signal.SIGKILL, signal.SIGTERM]))

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        killer = asyncio.create_task(kill_often(supervisor))
        for _ in range(12):
            await asyncio.wait_for(asyncio.gather(*(one(supervisor) for _ in range(10))), 20)
        killer.cancel()

    play(Supervisor([odd("a")], policy=policy), scene)
    assert ends["answered"] + ends["died"] == 120
    assert min(ends["answered"], ends["died"]) > 0
