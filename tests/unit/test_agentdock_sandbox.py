"""Code that loops, forks, allocates, hides and floods stays inside its limits and leaves nothing."""

import asyncio
import os
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest

from agentdock.sandbox import sweep
from agentdock.sandbox.limits import Execution, Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS
from agentdock.servers.execution import answer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
TIGHT = Limits(wall_seconds=5, cpu_seconds=1, processes=16)


def run(code: str, limits: Limits = TIGHT) -> Execution:
    return asyncio.run(Sandbox(limits, parallel=2).run(code))


def leftovers() -> list[str]:
    """Command lines of sandboxed processes that this process started."""
    mine = f'"parent": {os.getpid()}'.encode()
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            line = path.read_bytes()
            found += [line.decode()] if mine in line else []
    return found


def test_output_is_returned_and_stdout_is_kept_beside_stderr() -> None:
    execution = run("import sys\nprint('出力')\nprint('warned', file=sys.stderr)")
    assert (execution.stdout, execution.stderr, execution.exit_code) == ("出力\n", "warned\n", 0)
    reply = answer(execution)
    assert reply.text == "出力\n[stderr]\nwarned"
    assert not reply.is_error
    assert reply.structured is not None
    assert reply.structured["tier"] in TIERS


def test_a_traceback_starts_in_the_code_that_was_given() -> None:
    execution = run("def f():\n    raise ValueError('bad')\nf()")
    assert execution.exit_code == 1
    assert execution.stderr.splitlines()[1:3] == ['  File "main.py", line 3, in <module>', "    f()"]
    assert execution.stderr.endswith("ValueError: bad\n")
    assert answer(execution).is_error


def test_an_endless_loop_is_stopped_by_cpu_time() -> None:
    assert run("while True: pass").stopped == "CPU time limit of 1 s"


def test_a_sleeper_is_stopped_by_wall_time_and_keeps_what_it_printed() -> None:
    execution = run("import time\nprint('start', flush=True)\ntime.sleep(60)", Limits(wall_seconds=0.5))
    assert execution.stdout == "start\n"
    assert answer(execution).text == "start\n[stopped at the wall time limit of 0.5 s]"


def test_a_fork_bomb_meets_the_limit_of_processes_and_dies_with_the_call() -> None:
    code = """
import os, sys, time
forked = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
        forked += 1
    except OSError as error:
        print(forked, type(error).__name__)
        break
"""
    execution = run(code)
    count, error = execution.stdout.split()
    assert error == "BlockingIOError"
    assert int(count) <= 16
    assert leftovers() == []


def test_eight_gigabytes_are_a_memory_error() -> None:
    execution = run("x = bytearray(8 * 1024**3)")
    assert execution.stderr.endswith("MemoryError\n")


def test_the_memory_of_several_processes_counts_also_where_their_shares_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A container without the right to trace is refused ``smaps_rollup``: the sum must not become nothing."""
    text = sweep._text
    monkeypatch.setattr(sweep, "_text", lambda pid, name: b"" if name == "smaps_rollup" else text(pid, name))
    code = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(os.urandom(1024)) * (80 * 1024)
        time.sleep(600)
time.sleep(600)
"""
    execution = run(code, Limits(wall_seconds=20, memory_bytes=256 * 1024**2))
    assert execution.stopped == "memory limit of 256 MiB for all processes together"


def test_a_detached_child_is_killed_and_does_not_hold_the_call() -> None:
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
print("parent")
"""
    began = time.monotonic()
    assert run(code).stdout == "parent\n"
    assert time.monotonic() - began < 3
    assert leftovers() == []


def test_five_mebibytes_of_output_are_cut_with_a_flag() -> None:
    execution = run("print('x' * 5 * 1024**2)", Limits(output_bytes=1000))
    assert execution.truncated
    assert execution.stdout == "x" * 1000 + "\n[stdout truncated: the first 1000 of 5242881 bytes are shown]"


def test_a_file_beyond_the_limit_cannot_be_written() -> None:
    execution = run("open('f', 'wb').write(b'x' * 2 * 1024**2)", Limits(file_bytes=1024**2))
    assert "File too large" in execution.stderr


def test_the_environment_is_clean_and_the_folder_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    name = f"kept-{uuid.uuid4().hex}"
    execution = run(f"import os\nopen('{name}', 'w').close()\nprint(*sorted(os.environ))")
    assert not {"OPENAI_API_KEY", "PYTHONPATH"} & set(execution.stdout.split())
    assert not list(Path(tempfile.gettempdir()).glob(f"agentdock-*/{name}"))


def test_nothing_is_kept_between_calls_and_stdin_is_empty() -> None:
    async def main() -> list[Execution]:
        sandbox = Sandbox(TIGHT, parallel=2)
        codes = ["x = 1; open('f', 'w').close()", "import os; print('x' in globals(), os.listdir())", "print(input())"]
        return [await sandbox.run(code) for code in codes]

    _, second, third = asyncio.run(main())
    assert second.stdout == "False ['main.py']\n"
    assert "EOFError" in third.stderr


def test_a_cancelled_call_leaves_no_process() -> None:
    async def main() -> None:
        sandbox = Sandbox(TIGHT, parallel=1)
        await sandbox.run("")
        task = asyncio.create_task(sandbox.run("import time; time.sleep(600)"))
        await asyncio.sleep(0.2)
        task.cancel()
        await asyncio.wait([task])
        assert (await sandbox.run("print(1)")).stdout == "1\n"

    asyncio.run(main())
    assert leftovers() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="needs the right to change users")
def test_code_runs_as_a_user_of_its_own_where_that_is_possible() -> None:
    execution = run(
        "import os\nprint(os.getuid())\ntry:\n    os.setuid(0)\nexcept PermissionError:\n    print('refused')"
    )
    if not execution.containment.own_user:
        pytest.skip("this container may not change users")
    uid, refused = execution.stdout.split()
    assert int(uid) >= 20_000
    assert refused == "refused"
