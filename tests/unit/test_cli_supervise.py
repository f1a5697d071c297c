"""Child processes: whoever dies is named at once, and nothing outlives the supervisor."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_help import configured

from agentrl.cli.presence import Heart
from agentrl.cli.run import Watch
from agentrl.cli.supervise import Supervisor
from agentrl.errors import ProcessDied
from agentrl.store import open_store
from agentrl.types import Worker

PRELUDE = "import os, signal, subprocess, sys, time\n"
STANDS = "from pathlib import Path; Path(sys.argv[2]).write_text(str(os.getpid()))\n"


@pytest.fixture
def commands(tmp_path: Path) -> dict[str, str]:
    """An environment in which ``python -m agentrl CODE`` runs CODE."""
    package = tmp_path / "stand-in" / "agentrl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(f"{PRELUDE}exec(sys.argv[1])")
    return {"PYTHONPATH": str(package.parent)}


@pytest.fixture
def supervisor(tmp_path: Path, commands: dict[str, str]) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path / "logs", env=commands)
    yield supervisor
    supervisor.kill_all()


def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.01)


def pid_in(path: Path) -> int:
    until(lambda: path.exists() and path.read_text())
    return int(path.read_text())


def alive(pid: int) -> bool:
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")


def death_of(supervisor: Supervisor) -> str:
    """What ``check`` says of the child that ends."""
    (child,) = supervisor.children.values()
    until(lambda: child.process.poll() is not None)
    begun = time.monotonic()
    with pytest.raises(ProcessDied) as raised:
        supervisor.check()
    assert time.monotonic() - begun < 1.0
    return str(raised.value)


def test_a_child_that_dies_is_named_with_exit_code_log_and_its_last_lines(supervisor: Supervisor) -> None:
    supervisor.start("sampler", ["for n in range(40): print('line', n)\nsys.exit('out of luck')"], num_threads=1)
    told = death_of(supervisor)
    assert told.startswith("the sampler process ended with exit code 1; its last lines (")
    assert "logs/sampler.log" in told
    assert "    line 39\n    out of luck" in told
    assert "line 25\n" not in told
    assert "line 26\n" in told


def test_a_child_that_is_killed_is_named_with_the_signal_and_an_empty_log_is_said(supervisor: Supervisor) -> None:
    supervisor.start("engine", ["os.kill(os.getpid(), signal.SIGKILL)"], num_threads=1)
    told = death_of(supervisor)
    assert "the engine process was killed by SIGKILL" in told
    assert "(the log is empty)" in told


def test_a_child_that_ends_well_is_a_death_unless_it_was_to_end(supervisor: Supervisor) -> None:
    supervisor.start("sampler", ["pass"], num_threads=1)
    assert "the sampler process ended with exit code 0" in death_of(supervisor)


def test_a_child_that_was_to_end_is_no_death_but_its_failure_is(tmp_path: Path, commands: dict[str, str]) -> None:
    good = Supervisor(tmp_path / "good", env=commands)
    good.start("trainer", ["pass"], num_threads=1, expected_to_end=True)
    until(lambda: good.ended("trainer"))
    good.check()
    bad = Supervisor(tmp_path / "bad", env=commands)
    bad.start("trainer", ["sys.exit(3)"], num_threads=1, expected_to_end=True)
    assert "the trainer process ended with exit code 3" in death_of(bad)


def test_a_child_has_its_threads_and_no_input(supervisor: Supervisor) -> None:
    code = "print(os.environ['OMP_NUM_THREADS'], repr(sys.stdin.read()))"
    child = supervisor.start("trainer", [code], num_threads=3, expected_to_end=True)
    until(lambda: supervisor.ended("trainer"))
    assert child.log.read_text() == "3 ''\n"


def test_a_second_start_goes_on_in_the_same_log(supervisor: Supervisor) -> None:
    for word in ("first", "second"):
        child = supervisor.start("trainer", [f"print({word!r})"], num_threads=1, expected_to_end=True)
        until(lambda: supervisor.ended("trainer"))
    assert child.log.read_text() == "first\nsecond\n"


def test_a_stopped_child_may_end_as_it_likes(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n" + STANDS + "time.sleep(60)"
    supervisor.start("sampler", [code, str(tmp_path / "pid")], num_threads=1)
    pid_in(tmp_path / "pid")
    supervisor.stop("sampler", grace_seconds=10, ask=signal.SIGINT)
    assert supervisor.ended("sampler")
    supervisor.check()
    supervisor.stop("sampler", grace_seconds=10)
    supervisor.stop("nobody", grace_seconds=10)


@pytest.mark.parametrize("ends", ["at once", "never"])
def test_stop_ends_the_children_of_a_child_too(supervisor: Supervisor, tmp_path: Path, ends: str) -> None:
    """Whether the child obeys or not: what it started ignores SIGTERM and must not stay."""
    stubborn = PRELUDE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + STANDS + "time.sleep(60)"
    obey = "" if ends == "at once" else "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    code = f"{obey}subprocess.run([sys.executable, '-c', {stubborn!r}, '-', sys.argv[2]])"
    supervisor.start("sampler", [code, str(tmp_path / "pid")], num_threads=1)
    grandchild = pid_in(tmp_path / "pid")
    child = supervisor.children["sampler"].process.pid
    supervisor.stop("sampler", grace_seconds=5.0 if ends == "at once" else 0.3)
    until(lambda: not alive(grandchild) and not alive(child), seconds=2)


def test_kill_all_leaves_nothing(supervisor: Supervisor, tmp_path: Path) -> None:
    sleeper = PRELUDE + STANDS + "time.sleep(60)"
    code = f"subprocess.run([sys.executable, '-c', {sleeper!r}, '-', sys.argv[2]])"
    for name in ("engine", "sampler"):
        supervisor.start(name, [code, str(tmp_path / name)], num_threads=1)
    pids = [pid_in(tmp_path / name) for name in ("engine", "sampler")]
    pids += [child.process.pid for child in supervisor.children.values()]
    supervisor.kill_all()
    until(lambda: not any(alive(pid) for pid in pids), seconds=2)


class Silent:
    """A view that shows nothing."""

    phase = ""

    def say(self, text: object) -> None: ...

    def refresh(self, workers: object = ()) -> None: ...


def test_heartbeat_timeout_names_and_kills_a_child_that_lives_and_no_longer_beats(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    config = configured(tmp_path, "--heartbeat_timeout=1.5")
    child = supervisor.start("sampler", ["print('playing', flush=True); time.sleep(60)"], num_threads=1)
    until(lambda: child.log.read_text())

    async def scenario() -> None:
        store = open_store(f"sqlite:///{tmp_path / 'run.db'}", run="r")
        await store.open()
        worker = Worker(id="s", kind="sampler", host="h", pid=child.process.pid)
        heart = Heart(store, Worker(id="c", kind="run", host="h", pid=1))
        limit = config.engine.heartbeat_timeout
        watch = Watch(store, supervisor, Silent(), asyncio.Event(), heart, heartbeat_timeout=limit)

        async def beat() -> None:
            for _ in range(10):
                await store.heartbeat(worker)
                await asyncio.sleep(0.2)

        try:
            await watch.during("evaluating", beat())
            os.kill(child.process.pid, signal.SIGSTOP)
            await watch.during("training", asyncio.sleep(30))
        finally:
            await store.close()

    with pytest.raises(ProcessDied) as raised:
        asyncio.run(scenario())
    assert f"the sampler process (pid {child.process.pid}) hangs: no heartbeat for " in str(raised.value)
    assert str(raised.value).endswith("logs/sampler.log):\n    playing")
    assert not alive(child.process.pid)


def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path, commands: dict[str, str]) -> None:
    program = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from agentrl.cli.supervise import Supervisor
        supervisor = Supervisor(Path({str(tmp_path)!r}), env={commands!r})
        supervisor.start("engine", [{STANDS + "time.sleep(60)"!r}, {str(tmp_path / "pid")!r}], num_threads=1)
        time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", program], env=os.environ)
    try:
        child = pid_in(tmp_path / "pid")
        assert alive(child)
    finally:
        process.kill()
        process.wait()
    until(lambda: not alive(child))
