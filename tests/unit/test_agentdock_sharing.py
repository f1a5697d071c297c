"""Who shares a copy of a server, when copies start and end, and what happens while a server keeps failing."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentdock.calls import ServerDied, ServerFailed
from agentdock.config import ConfigProblem, DockConfig, GatewayOptions, Profile, parse_config
from agentdock.dock import Dock
from agentdock.spec import ServerSpec, Serving
from agentdock.supervisor import ServerState, ServerStatus

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
TOOLS = ("--tools", "pid,hang,echo,die")


def odd(name: str, *args: str, serving: Serving) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=("-S", str(ODD), *TOOLS, *args), serving=serving)


def play(config: DockConfig, state_dir: Path, scene: Callable[[Dock], Awaitable[None]]) -> None:
    async def main() -> None:
        dock = Dock(config, state_dir=state_dir)
        try:
            await dock.start()
            await scene(dock)
        finally:
            await dock.close()

    asyncio.run(main())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(true: Callable[[], bool], seconds: float = 10) -> bool:
    for _ in range(int(seconds / 0.02)):
        if true():
            return True
        await asyncio.sleep(0.02)
    return False


async def pid_for(dock: Dock, session: str = "", profile: str = "default") -> int:
    return int((await dock.call("a.pid", {}, session=session, profile=profile)).text)


def status_of(dock: Dock, server: str = "a") -> ServerStatus:
    (status,) = (status for status in dock.servers() if status.name == server)
    return status


def test_sessions_have_processes_of_their_own_until_they_end(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        first, second = await pid_for(dock, "s1"), await pid_for(dock, "s2")
        assert first != second
        assert [await pid_for(dock, "s1"), await pid_for(dock, "s2")] == [first, second]
        assert status_of(dock).num_copies == 2
        pending = asyncio.create_task(dock.call("a.hang", {}, session="s1"))
        await asyncio.sleep(0.1)
        assert await dock.end_session("s1") == 1
        with pytest.raises(ServerDied):
            await pending
        assert not alive(first)
        assert alive(second)
        assert await dock.end_session("s1") == 0
        assert await pid_for(dock, "s1") not in (first, second)

    play(DockConfig(servers=(odd("a", serving=Serving(share="session")),)), tmp_path, scene)


def test_calls_without_a_session_share_no_process_where_sessions_have_their_own(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        pids = [await pid_for(dock) for _ in range(3)]
        assert len(set(pids)) == 3
        assert await until(lambda: not any(alive(pid) for pid in pids))

    play(DockConfig(servers=(odd("a", serving=Serving(share="session")),)), tmp_path, scene)


def test_profiles_share_a_process_among_their_own_callers_only(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        pids = {profile: await pid_for(dock, "s1", profile) for profile in ("default", "other")}
        assert len(set(pids.values())) == 2
        assert await pid_for(dock, "s2", "other") == pids["other"]
        assert await dock.end_session("s1") == 0
        assert await pid_for(dock, "s3", "default") == pids["default"]

    profiles = {name: Profile(name=name) for name in ("default", "other")}
    config = DockConfig(servers=(odd("a", serving=Serving(share="profile")),), profiles=profiles)
    play(config, tmp_path, scene)


def test_an_idle_session_loses_its_process_and_gets_another_one(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        first = await pid_for(dock, "s1")
        pending = asyncio.create_task(dock.call("a.hang", {}, session="busy", timeout_seconds=30))
        assert await until(lambda: not alive(first))
        assert status_of(dock).state is ServerState.READY
        assert status_of(dock).num_copies == 1
        pending.cancel()
        await asyncio.wait([pending])
        assert await pid_for(dock, "s1") != first

    serving = Serving(share="session", idle_stop_seconds=0.4)
    play(DockConfig(servers=(odd("a", serving=serving),)), tmp_path, scene)


def test_an_idle_server_ends_and_the_next_call_starts_it_again(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        first = await pid_for(dock)
        assert await until(lambda: not alive(first))
        assert await until(lambda: status_of(dock).state is ServerState.IDLE)
        assert dock.unready() == ()
        assert [tool.name for tool in dock.tools()] == ["pid", "hang", "echo", "die"]
        together = await asyncio.gather(*(pid_for(dock) for _ in range(5)))
        assert set(together) != {first}
        assert len(set(together)) == 1

    play(DockConfig(servers=(odd("a", serving=Serving(idle_stop_seconds=0.4)),)), tmp_path, scene)


def test_a_lazy_server_starts_once_to_be_listed_and_then_with_its_first_call_only(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    def num_starts() -> int:
        return len(starts.read_text().splitlines())

    async def first(dock: Dock) -> None:
        assert num_starts() == 1
        assert (status_of(dock).state, status_of(dock).num_copies) == (ServerState.IDLE, 0)

    async def second(dock: Dock) -> None:
        assert [tool.name for tool in dock.tools()] == ["pid", "hang", "echo", "die"]
        assert status_of(dock).state is ServerState.IDLE
        assert num_starts() == 1
        assert alive(await pid_for(dock))
        assert num_starts() == 2
        assert status_of(dock).state is ServerState.READY

    async def changed(dock: Dock) -> None:
        assert [tool.name for tool in dock.tools()] == ["echo"]

    lazy = Serving(lazy=True)
    config = DockConfig(servers=(odd("a", "--starts", str(starts), serving=lazy),))
    play(config, tmp_path, first)
    play(config, tmp_path, second)
    play(DockConfig(servers=(odd("a", "--tools", "echo", serving=lazy),)), tmp_path, changed)


def test_prewarmed_copies_serve_the_next_sessions_and_are_replaced(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    def num_starts() -> int:
        return len(starts.read_text().splitlines())

    async def scene(dock: Dock) -> None:
        assert (num_starts(), status_of(dock).num_copies) == (2, 2)
        waiting = status_of(dock).pid
        assert await pid_for(dock, "s1") == waiting
        assert await until(lambda: num_starts() == 3)
        assert await until(lambda: status_of(dock).num_copies == 3)

    serving = Serving(share="session", prewarm=2)
    play(DockConfig(servers=(odd("a", "--starts", str(starts), serving=serving),)), tmp_path, scene)


def test_no_more_servers_start_at_once_than_configured(tmp_path: Path) -> None:
    starts = tmp_path / "starts"

    async def scene(dock: Dock) -> None:
        running = most = 0
        for line in starts.read_text().splitlines():
            running += 1 if line == "start" else -1
            most = max(most, running)
        assert most == 2

    slow = ("--starts", str(starts), "--start-seconds", "0.2")
    servers = tuple(odd(f"s{i}", *slow, serving=Serving()) for i in range(5))
    play(DockConfig(servers=servers, gateway=GatewayOptions(starts_at_once=2)), tmp_path, scene)


def test_a_server_that_keeps_failing_is_refused_with_its_reason_until_an_attempt_succeeds(tmp_path: Path) -> None:
    broken, starts = tmp_path / "broken", tmp_path / "starts"

    async def scene(dock: Dock) -> None:
        assert (await dock.call("a.echo", {"text": "x"})).text == "x"
        broken.touch()
        with pytest.raises(ServerDied):
            await dock.call("a.die", {})
        assert await until(lambda: status_of(dock).state is ServerState.FAILED)
        with pytest.raises(
            ServerFailed, match=r"(?s)failed 2 restarts .*broken for now.*next attempt to start it is in"
        ):
            await dock.call("a.echo", {})
        assert dock.unready()
        before = len(starts.read_text().splitlines())
        assert await until(lambda: len(starts.read_text().splitlines()) > before)
        broken.unlink()
        assert await until(lambda: status_of(dock).state is ServerState.READY)
        assert (await dock.call("a.echo", {"text": "back"})).text == "back"
        assert status_of(dock).restarts == 0

    serving = Serving(max_restarts=2, probe_seconds=0.2)
    spec = odd("a", "--die-while", str(broken), "--starts", str(starts), serving=serving)
    play(DockConfig(servers=(spec,)), tmp_path, scene)


def test_a_server_that_could_not_start_at_first_is_there_once_it_can(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()

    async def scene(dock: Dock) -> None:
        assert status_of(dock).state is ServerState.FAILED
        assert "broken for now" in status_of(dock).reason
        broken.unlink()
        assert await until(lambda: status_of(dock).state is ServerState.READY)
        assert (await dock.call("a.echo", {"text": "x"})).text == "x"

    spec = odd("a", "--die-while", str(broken), serving=Serving(probe_seconds=0.2))
    play(DockConfig(servers=(spec,)), tmp_path, scene)


def test_a_server_is_stopped_started_and_restarted_by_hand(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        first = await pid_for(dock)
        await dock.stop_server("a")
        assert not alive(first)
        assert status_of(dock).state is ServerState.STOPPED
        with pytest.raises(ServerFailed, match="tool server 'a' was stopped by hand"):
            await dock.call("a.pid", {})
        await dock.start_server("a")
        second = await pid_for(dock)
        await dock.restart("a")
        assert not alive(second)
        assert await pid_for(dock) not in (first, second)
        with pytest.raises(ServerFailed, match="no server 'b'; there are a"):
            await dock.restart("b")

    play(DockConfig(servers=(odd("a", serving=Serving()),)), tmp_path, scene)


def test_killed_in_a_call_of_one_session_the_other_sessions_go_on(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        first, second = await pid_for(dock, "s1"), await pid_for(dock, "s2")
        pending = asyncio.create_task(dock.call("a.hang", {}, session="s1"))
        await asyncio.sleep(0.1)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ServerDied, match="killed by signal 9 during a call to 'hang'"):
            await pending
        assert await pid_for(dock, "s2") == second
        assert await pid_for(dock, "s1") not in (first, second)

    play(DockConfig(servers=(odd("a", serving=Serving(share="session")),)), tmp_path, scene)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("prewarm = 2", 'prewarm: keeps copies for sessions to come, which works with share = "session" only'),
        ('share = "session"\nlazy = true\nprewarm = 1', "prewarm: keeps copies running and lazy runs none"),
        ('share = "agent"', "share: is str 'agent'; expected one of all, profile, session"),
    ],
)
def test_sharing_that_cannot_work_is_refused(keys: str, problem: str) -> None:
    with pytest.raises(ConfigProblem) as caught:
        parse_config(f'[server.a]\ncommand = "x"\n{keys}', Path("dock.toml"))
    assert problem in str(caught.value)


def test_sharing_is_configured_per_server() -> None:
    text = """
[gateway]
starts_at_once = 2
[server.a]
command = "x"
share = "session"
prewarm = 3
idle_stop_seconds = 60
max_restarts = 1
probe_seconds = 5
[server.python]
builtin = "python"
lazy = true
"""
    config = parse_config(text, Path("dock.toml"))
    assert config.gateway.starts_at_once == 2
    assert config.servers[0].serving == Serving(
        share="session", prewarm=3, idle_stop_seconds=60, max_restarts=1, probe_seconds=5
    )
    assert config.servers[1].serving.lazy
