"""Each tier of the sandbox holds what it says it holds; a tier this machine lacks is refused by name."""

import asyncio
import os
import socket
import subprocess
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agentdock.sandbox.limits import Execution, Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS, TierMissing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the tiers are those of Linux")
TIGHT = Limits(wall_seconds=8, cpu_seconds=2, processes=16)
ATTEMPTS = """
import os, socket
def attempt(name, act):
    try:
        act()
        print(name, "done")
    except OSError:
        print(name, "refused")
def connect(family, address):
    with socket.socket(family) as s:
        s.settimeout(2)
        s.connect(address)
attempt("shadow", lambda: open("/etc/shadow").read())
attempt("secret", lambda: open({secret!r}).read())
attempt("parent", lambda: open("/proc/{pid}/environ").read())
attempt("metadata", lambda: connect(socket.AF_INET, ("169.254.169.254", 80)))
attempt("loopback", lambda: connect(socket.AF_INET, ("127.0.0.1", {port})))
attempt("six", lambda: connect(socket.AF_INET6, ("::1", 80)))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK))
attempt("system", lambda: open("/usr/written-by-sandbox", "w"))
attempt("own", lambda: open("mine", "w").write("x"))
"""
FORK_BOMB = """
import os, time
forked = 0
while True:
    try:
        if os.fork() == 0:
            time.sleep(600)
        forked += 1
    except OSError:
        print(forked)
        break
"""
DETACHED = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)  # {mark}"], {{}})
    os._exit(0)
print("parent")
"""


def run_in(tier: str, code: str, limits: Limits = TIGHT) -> Execution:
    """Run in exactly this tier; skip with the reason where the machine lacks it."""
    try:
        return asyncio.run(Sandbox(limits, parallel=2, tiers=(tier,), min_tier=tier).run(code))
    except TierMissing as error:
        pytest.skip(str(error))


def command_lines() -> list[str]:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().decode(errors="replace"))
    return lines


@pytest.mark.parametrize("tier", TIERS)
def test_files_secrets_and_networks_outside_are_out_of_reach(tier: str, tmp_path: Path) -> None:
    secret = tmp_path / "settings.toml"
    secret.write_text("key = 'k'")
    secret.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        execution = run_in(tier, ATTEMPTS.format(secret=str(secret), pid=os.getpid(), port=port))
    if (execution.containment.network, execution.containment.readable) != ("off", "own"):
        pytest.skip(f"this kernel holds less, and the result says so: {execution.containment}")
    outcomes = dict(line.split() for line in execution.stdout.splitlines())
    assert outcomes.pop("own") == "done"
    assert len(outcomes) == 8
    assert set(outcomes.values()) == {"refused"}, outcomes


@pytest.mark.parametrize("tier", TIERS)
def test_a_fork_bomb_is_bounded(tier: str) -> None:
    assert int(run_in(tier, FORK_BOMB).stdout) <= TIGHT.processes


@pytest.mark.parametrize("tier", TIERS)
def test_a_detached_child_with_an_empty_environment_dies_with_the_call(tier: str) -> None:
    mark = uuid.uuid4().hex
    execution = run_in(tier, DETACHED.format(mark=mark))
    assert execution.stdout == "parent\n"
    if tier == "limits" and not execution.containment.own_user:
        pytest.skip("without a user of its own such a child escapes at the tier 'limits'")
    assert not [line for line in command_lines() if mark in line]


@pytest.mark.parametrize("tier", TIERS)
def test_memory_cpu_and_open_files_end_at_their_limits(tier: str) -> None:
    assert "MemoryError" in run_in(tier, "x = bytearray(8 * 1024**3)").stderr
    assert run_in(tier, "while True: pass", replace(TIGHT, cpu_seconds=1)).stopped == "CPU time limit of 1 s"
    many = run_in(tier, "kept = [open('main.py') for _ in range(1000)]", replace(TIGHT, open_files=64))
    assert "Too many open files" in many.stderr


@pytest.mark.parametrize("tier", TIERS)
def test_the_working_folder_has_a_size(tier: str) -> None:
    code = "import time\nfor i in range(10): open(f'f{i}', 'wb').write(b'x' * 1024**2)\ntime.sleep(60)"
    assert run_in(tier, code, replace(TIGHT, disk_bytes=4 * 1024**2)).stopped == "limit of 4 MiB in the working folder"


@pytest.mark.parametrize("tier", TIERS)
def test_a_new_namespace_and_a_foreign_process_cannot_be_had(tier: str) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
print(libc.unshare(0x10000000), libc.ptrace(16, 1, 0, 0), libc.mount(b"none", b"/mnt", b"tmpfs", 0, 0))
"""
    assert run_in(tier, code).stdout == "-1 -1 -1\n"


def test_a_tier_that_is_missing_is_refused_with_the_reason_for_each() -> None:
    sandbox = Sandbox(TIGHT, parallel=1, min_tier="container")
    with pytest.raises(TierMissing, match=r"no sandbox of tier 'container'.*no container image is named"):
        asyncio.run(sandbox.run("1"))


def test_a_server_that_requires_a_missing_tier_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentdock.servers.python", "--min-tier", "container"],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "container: no container image is named (--image)" in done.stderr


def test_the_tier_in_use_says_why_stronger_ones_are_not() -> None:
    choice = asyncio.run(Sandbox(TIGHT, parallel=1).choice())
    weaker = TIERS.index(choice.containment.tier)
    assert [tier for tier, _ in choice.missing] == list(TIERS[:weaker])
    assert all(reason for _, reason in choice.missing)


def test_the_last_expression_is_shown() -> None:
    assert run_in("limits", "x = 20\nx + 1").stdout == "21\n"
    assert run_in("limits", "x = 20\nNone").stdout == ""


def test_a_syntax_error_shows_the_line_and_none_of_our_files() -> None:
    execution = run_in("limits", "x = 1\ny = (")
    assert "main.py" in execution.stderr
    assert "line 2" in execution.stderr
    assert "sandbox" not in execution.stderr
