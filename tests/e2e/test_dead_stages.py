"""A stage of ``agentrl run`` that dies or hangs: the run ends within 30 seconds and names it, and leaves no process
behind. Tool servers are started again instead, and that is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import SCRIPTED, Run, write_tasks

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

LIMIT_SECONDS = 30.0
ENDLESS = {"max_steps": "1000", "num_train_epochs": "1000"}


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return SCRIPTED | write_tasks(tmp_path_factory.mktemp("tasks"))


def processes() -> dict[int, tuple[int, str, str]]:
    """Process id -> parent, state, command of everything that runs here."""
    listed = subprocess.run(
        ["ps", "-eww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    fields = (line.split(None, 3) for line in listed.splitlines())
    return {int(pid): (int(parent), state, command) for pid, parent, state, command in fields}


def descendants(pid: int) -> set[int]:
    """Of ``pid``, without itself: engine, sampler, trainer, tool servers, and what guards them."""
    running, found, added = processes(), set[int](), {pid}
    while added:
        added = {child for child, (parent, *_) in running.items() if parent in added} - found
        found |= added
    return found


def left_of(pids: set[int]) -> list[str]:
    running = processes()
    return [running[pid][2] for pid in pids if pid in running and not running[pid][1].startswith("Z")]


def until(condition: Callable[[], object], what: str, seconds: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds} s"
        time.sleep(0.1)


def tool_server(run: Run) -> int:
    running = processes()
    (found,) = [pid for pid in descendants(run.pid_of("sampler")) if "calculator" in running[pid][2]]
    return found


def status_of(run: Run) -> str:
    command = [sys.executable, "-m", "agentrl", "status", run.name]
    return unwrapped(subprocess.run(command, cwd=run.folder, capture_output=True, text=True, check=True).stdout)


def unwrapped(printed: str) -> str:
    return " ".join(printed.split())


@pytest.fixture
def endless(tmp_path: Path, options: dict[str, str], request: pytest.FixtureRequest) -> Iterator[Run]:
    """A run that goes on until something happens to it; ``request.param`` are options of its own."""
    run = Run(tmp_path, "victim").start(options | ENDLESS | getattr(request, "param", {}))
    assert run.process is not None
    try:
        run.wait_for_step(1)
        yield run
    finally:
        run.process.kill()
        run.process.communicate()


def ends_by_name(run: Run, pid: int, number: signal.Signals) -> str:
    """What the run printed; it ended in time, by its own doing, and everything it had started is gone."""
    assert run.process is not None
    started = descendants(run.process.pid)
    assert pid in started
    os.kill(pid, number)
    struck = time.monotonic()
    code, printed = run.end()
    assert time.monotonic() - struck < LIMIT_SECONDS
    assert code == 1
    until(lambda: not left_of(started), "the end of all its processes", seconds=5)
    return printed


@pytest.mark.parametrize("victim", ["sampler", "engine", "trainer"])
def test_a_killed_stage_ends_the_run_by_name_and_leaves_no_process(endless: Run, victim: str) -> None:
    printed = ends_by_name(endless, endless.pid_of(victim), signal.SIGKILL)
    assert f"the {victim} process was killed by SIGKILL" in printed
    assert f"logs/{victim}.log" in printed
    assert "go on with --run_name victim --resume_from_checkpoint auto" in printed
    told = status_of(endless)
    assert "victim: failed" in told
    assert f"ProcessDied: the {victim} process was killed by" in told


@pytest.mark.parametrize(
    ("victim", "endless"),
    [("trainer", {}), ("sampler", {"heartbeat_timeout": "12"}), ("engine", {"heartbeat_timeout": "12"})],
    ids=["trainer, with the default timeout", "sampler", "engine"],
    indirect=["endless"],
)
def test_a_hung_stage_ends_the_run_by_name_and_leaves_no_process(endless: Run, victim: str) -> None:
    pid = endless.pid_of(victim)
    printed = ends_by_name(endless, pid, signal.SIGSTOP)
    assert f"the {victim} process (pid {pid}) hangs: no heartbeat for " in printed
    assert f"logs/{victim}.log" in printed
    assert "go on with --run_name victim --resume_from_checkpoint auto" in printed
    assert f"ProcessDied: the {victim} process" in status_of(endless)


def test_a_killed_run_takes_all_its_processes_along_and_is_told_as_crashed(endless: Run) -> None:
    assert endless.process is not None
    started = descendants(endless.process.pid)
    assert tool_server(endless) in started
    endless.process.kill()
    until(lambda: not left_of(started), "the end of all its processes", seconds=10)
    told = status_of(endless)
    assert "victim: crashed" in told
    assert "go on with --run_name victim --resume_from_checkpoint auto" in told


# --- Tool servers ----------------------------------------------------------------------------------------------------


def test_a_killed_tool_server_is_started_again_and_the_run_says_so_and_goes_on(
    tmp_path: Path, options: dict[str, str]
) -> None:
    run = Run(tmp_path, "goes-on").start(options | {"max_steps": "8", "num_train_epochs": "10"})
    run.wait_for_step(1)
    os.kill(tool_server(run), signal.SIGKILL)
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    assert "tool server 'calculator' was killed by signal 9; it was started again (restart 1)" in unwrapped(printed)
    assert run.steps()[-1]["step"] == 8


def test_a_hung_tool_server_costs_its_calls_and_is_started_again(tmp_path: Path, options: dict[str, str]) -> None:
    """A hang is noticed at the deadline of a call, which the model reads as a timeout."""
    run = Run(tmp_path, "goes-on").start(options | {"max_steps": "8", "num_train_epochs": "10", "tool_timeout": "3"})
    run.wait_for_step(1)
    os.kill(tool_server(run), signal.SIGSTOP)
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    assert "it was started again (restart 1)" in unwrapped(printed)
    timeouts = run.ask(lambda store: store.find("turn"))
    assert any(result.status == "timeout" for turn in timeouts for result in turn.tool_results)


def test_a_tool_server_that_dies_again_and_again_ends_the_run_by_name(tmp_path: Path, options: dict[str, str]) -> None:
    broken = tmp_path / "broken"
    server = tmp_path / "brittle.py"
    server.write_text(
        f"import os, sys, runpy\nif os.path.exists({str(broken)!r}):\n    sys.exit('no longer')\n"
        "sys.argv = ['calculator']\nrunpy.run_module('agentdock.servers.calculator', run_name='__main__')\n"
    )
    run = Run(tmp_path, "victim").start(options | ENDLESS | {"mcp_manager_url": f"stdio:{sys.executable} {server}"})
    assert run.process is not None
    run.wait_for_step(1)
    started = descendants(run.process.pid)
    running = processes()
    (pid,) = [pid for pid in started if str(server) in running[pid][2]]
    broken.touch()
    os.kill(pid, signal.SIGKILL)
    struck = time.monotonic()
    code, printed = run.end()
    assert time.monotonic() - struck < LIMIT_SECONDS
    assert code == 1
    told = unwrapped(printed)
    assert "the sampler process ended with exit code" in told
    assert "tool server 'brittle' failed 3 restarts without answering a call in between" in told
    assert "no longer" in told
    until(lambda: not left_of(started), "the end of all its processes", seconds=5)
