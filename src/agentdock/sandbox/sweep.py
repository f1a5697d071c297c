"""Find and kill what a sandboxed call left behind, also what moved to a session of its own (Linux: /proc)."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
MARKER = "AGENTDOCK_CALL"
MAX_ROUNDS = 100


def kill_leftovers(uid: int | None, marker: str) -> None:
    """Kill all processes of ``uid``, or without one those whose environment carries ``marker``, until none is left.

    A process that starts another program with an environment of its own escapes the marker, not the uid.
    """
    for _ in range(MAX_ROUNDS):
        found = list(_of_uid(uid) if uid is not None else _marked(marker))
        if not found:
            return
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def count_marked(marker: str) -> int:
    """How many processes carry ``marker``: for root that cannot change users, RLIMIT_NPROC does not count."""
    return sum(1 for _ in _marked(marker))


def uid_in_use(uid: int) -> bool:
    return any(True for _ in _of_uid(uid))


def threads_of_user() -> int:
    """How many threads this user runs now; the kernel counts them against RLIMIT_NPROC (macOS counts processes)."""
    mine = os.getuid()
    if not PROC.is_dir():
        listed = subprocess.run(["ps", "-U", str(mine), "-o", "pid="], capture_output=True, text=True, check=True)
        return len(listed.stdout.split())
    return sum(int(status["Threads"]) for _, status in _statuses() if int(status["Uid"].split()[0]) == mine)


def _of_uid(uid: int) -> Iterator[int]:
    for pid, status in _statuses():
        if int(status["Uid"].split()[0]) == uid and not status["State"].startswith("Z"):
            yield pid


def _marked(marker: str) -> Iterator[int]:
    wanted = f"{MARKER}={marker}".encode()
    for pid in _pids():
        with suppress(OSError):
            if wanted in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                yield pid


def _statuses() -> Iterator[tuple[int, dict[str, str]]]:
    for pid in _pids():
        with suppress(OSError):
            lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
            status = {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}
            if {"Uid", "State", "Threads"} <= status.keys():
                yield pid, status


def _pids() -> list[int]:
    return [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()] if PROC.is_dir() else []
