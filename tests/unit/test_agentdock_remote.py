"""Servers that are reached over HTTP: real processes that answer, want a key, die, restart or are not there yet."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentdock.calls import CallTimeout, ServerDied
from agentdock.config import DockConfig, parse_config
from agentdock.dock import Dock
from agentdock.spec import Remote, ServerSpec
from agentdock.supervisor import RestartPolicy, ServerState, Supervisor

HTTP = Path(__file__).resolve().parent.parent / "tools_servers" / "remote.py"
ERAS = {"2026": [], "2025": ["--legacy"], "sse": ["--sse"]}
PATIENT = RestartPolicy(max_restarts=200, first_backoff_seconds=0.05, max_backoff_seconds=0.1)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def start(port: int, *args: str) -> subprocess.Popen[bytes]:
    """A server process that accepts connections."""
    process = subprocess.Popen([sys.executable, str(HTTP), str(port), *args])
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return process
        time.sleep(0.05)
    stop(process)
    raise AssertionError(f"no server listens on port {port}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@contextmanager
def running(port: int, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    process = start(port, *args)
    try:
        yield process
    finally:
        stop(process)


def remote(port: int, era: str = "2026", **headers: str) -> ServerSpec:
    path = "sse" if era == "sse" else "mcp"
    url = f"http://127.0.0.1:{port}/{path}"
    where = Remote(url=url, headers=headers, sse=era == "sse")
    return ServerSpec(name="r", remote=where, start_timeout_seconds=10)


def play(spec: ServerSpec, scene: Callable[[Supervisor], Awaitable[None]], policy: RestartPolicy | None = None) -> None:
    async def main() -> None:
        async with Supervisor([spec], policy=policy or PATIENT) as supervisor:
            await scene(supervisor)

    asyncio.run(main())


async def text_of(supervisor: Supervisor, tool: str, text: str = "", seconds: float = 30) -> str:
    return (await supervisor.call("r", tool, {"text": text}, timeout_seconds=seconds)).text


async def noted(log: Path, line: str) -> bool:
    for _ in range(500):
        if log.exists() and line in log.read_text().splitlines():
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.mark.parametrize("era", ERAS)
def test_a_remote_server_of_each_protocol_is_called_like_a_process(era: str, tmp_path: Path) -> None:
    async def scene(supervisor: Supervisor) -> None:
        assert await supervisor.start() == {}
        assert await text_of(supervisor, "echo", "via HTTP é") == "via HTTP é"
        failed = await supervisor.call("r", "fail", {"text": "this"}, timeout_seconds=10)
        assert (failed.is_error, failed.text) == (True, "Error executing tool fail: failed on this")
        if era != "sse":
            assert len(await text_of(supervisor, "big")) == 5_000_000
        together = await asyncio.gather(*(text_of(supervisor, "echo", str(i)) for i in range(20)))
        assert together == [str(i) for i in range(20)]
        status = supervisor.status()[0]
        assert (status.kind, status.state, status.pid) == ("sse" if era == "sse" else "http", ServerState.READY, None)

    port = free_port()
    with running(port, *ERAS[era]):
        play(remote(port, era), scene)


@pytest.mark.parametrize("era", ERAS)
def test_a_remote_call_ends_at_its_deadline_and_is_cancelled_on_the_server(era: str, tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        with pytest.raises(CallTimeout, match=r"'wait' on tool server 'r' gave no answer within 0\.5 s"):
            await text_of(supervisor, "wait", seconds=0.5)
        assert await noted(log, "cancelled")
        log.unlink()
        pending = asyncio.create_task(text_of(supervisor, "wait"))
        assert await noted(log, "waiting")
        pending.cancel()
        await asyncio.wait([pending])
        assert await noted(log, "cancelled")
        assert await text_of(supervisor, "echo", "free") == "free"
        assert supervisor.status()[0].restarts == 0

    port = free_port()
    with running(port, *ERAS[era], "--log", str(log)):
        play(remote(port, era), scene)


@pytest.mark.parametrize("era", ERAS)
def test_a_remote_server_killed_in_a_call_ends_that_call_and_the_next_one_waits_for_its_return(
    era: str, tmp_path: Path
) -> None:
    log, port = tmp_path / "log", free_port()

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        pending = asyncio.create_task(text_of(supervisor, "wait"))
        assert await noted(log, "waiting")
        first.send_signal(signal.SIGKILL)
        with pytest.raises(ServerDied, match=r"tool server 'r' .* during a call to 'wait'"):
            await pending
        calling = asyncio.gather(*(text_of(supervisor, "echo", str(i)) for i in range(10)))
        second = await asyncio.to_thread(start, port, *ERAS[era])
        try:
            assert await calling == [str(i) for i in range(10)]
        finally:
            stop(second)

    with running(port, *ERAS[era], "--log", str(log)) as first:
        play(remote(port, era), scene)


def test_calls_in_a_session_that_the_server_forgot_are_made_in_a_new_one(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        assert await text_of(supervisor, "echo", "one") == "one"
        await asyncio.to_thread(stop, processes.pop())
        processes.append(await asyncio.to_thread(start, port, "--legacy", "--log", str(log)))
        together = await asyncio.gather(*(text_of(supervisor, "echo", str(i)) for i in range(10)))
        assert together == [str(i) for i in range(10)]
        assert "initialize" in log.read_text().splitlines()
        assert supervisor.status()[0].restarts == 0

    processes = [start(port, "--legacy")]
    try:
        play(remote(port, "2025"), scene)
    finally:
        stop(processes.pop())


def test_headers_come_from_the_environment_and_a_wrong_key_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    spec = remote(port, **{"X-Key": "${DOCK_TEST_KEY}"})

    async def right(supervisor: Supervisor) -> None:
        assert await supervisor.start() == {}
        assert await text_of(supervisor, "echo", "in") == "in"

    async def wrong(supervisor: Supervisor) -> None:
        reason = (await supervisor.start())["r"]
        assert "answered with HTTP 401 Unauthorized; check headers" in reason
        assert "wrong-key" not in reason

    async def unset(supervisor: Supervisor) -> None:
        assert "DOCK_TEST_KEY (in headers.X-Key)" in (await supervisor.start())["r"]

    with running(port, "--key", "right-key"):
        for value, scene in (("right-key", right), ("wrong-key", wrong), (None, unset)):
            if value is None:
                monkeypatch.delenv("DOCK_TEST_KEY")
            else:
                monkeypatch.setenv("DOCK_TEST_KEY", value)
            play(spec, scene)
    assert spec.missing({}) == ("DOCK_TEST_KEY",)


@pytest.mark.parametrize("era", ERAS)
def test_a_remote_server_that_is_not_there_is_named_and_the_others_are_used(era: str, tmp_path: Path) -> None:
    odd = HTTP.with_name("odd.py")

    async def main() -> None:
        good = ServerSpec(name="good", command=sys.executable, args=("-S", str(odd)))
        dock = Dock(DockConfig(servers=(remote(free_port(), era), good)), state_dir=tmp_path)
        try:
            await dock.start()
            assert (await dock.call("good.echo", {"text": "x"})).text == "x"
            (away,) = (status for status in dock.servers() if status.name == "r")
            assert away.state is ServerState.FAILED
            assert away.reason.startswith("tool server 'r' could not be reached: ")
        finally:
            await dock.close()

    asyncio.run(main())


def test_a_call_to_a_remote_server_that_went_away_ends_within_its_deadline() -> None:
    port = free_port()

    async def scene(supervisor: Supervisor) -> None:
        await supervisor.start()
        await asyncio.to_thread(stop, process)
        with pytest.raises(CallTimeout, match="was not back within the 1 s of a call to 'echo'"):
            await text_of(supervisor, "echo", seconds=1)

    process = start(port)
    try:
        play(remote(port), scene)
    finally:
        stop(process)


def test_stopping_does_not_wait_for_a_remote_server_that_never_answers() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as deaf:
            supervisor = Supervisor([remote(deaf.getsockname()[1])])
            starting = asyncio.create_task(supervisor.start())
            await asyncio.sleep(0.2)
            await asyncio.wait_for(supervisor.stop(), 5)
            assert "stopped" in (await starting)["r"]

    asyncio.run(main())


def test_remote_servers_are_configured_by_url_type_and_headers() -> None:
    text = """
[server.docs]
url = "https://docs.example/mcp"
headers = { Authorization = "Bearer ${DOCS_TOKEN}" }
idempotent_tools = ["find"]
[server.old]
type = "sse"
url = "https://old.example/events"
[server.older]
url = "https://old.example/sse"
[server.assets]
type = "streamable-http"
url = "${ASSETS_URL}"
"""
    docs, old, older, assets = parse_config(text, Path("dock.toml")).servers
    assert docs.remote == Remote(
        url="https://docs.example/mcp", headers={"Authorization": "Bearer ${DOCS_TOKEN}"}, sse=False
    )
    assert [spec.kind for spec in (docs, old, older, assets)] == ["http", "sse", "sse", "http"]
    assert docs.missing({}) == ("DOCS_TOKEN",)
    assert docs.idempotent_tools == {"find"}
    resolved = assets.resolved({"ASSETS_URL": "https://assets.example/mcp"}).remote
    assert resolved is not None
    assert resolved.url == "https://assets.example/mcp"
