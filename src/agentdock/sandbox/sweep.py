"""Find, measure and kill what a sandboxed call started, also what moved to a session of its own (Linux: /proc)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
MARKER = "AGENTDOCK_CALL"
MAX_ROUNDS = 100
UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
THREADS = re.compile(rb"^Threads:\t(\d+)", re.MULTILINE)
ANONYMOUS = re.compile(rb"^Rss(?:Anon|Shmem):\s+(\d+) kB", re.MULTILINE)
SHARE = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
ZOMBIE = b"\nState:\tZ"


def members(uid: int | None, marker: str) -> list[int]:
    """All living processes of ``uid``, or without one those whose environment carries ``marker``.

    A process that starts another program with an environment of its own escapes the marker, not the uid.
    """
    return list(_of_uid(uid) if uid is not None else _marked(marker))


def kill_leftovers(uid: int | None, marker: str, *, spared: Collection[int] = ()) -> None:
    """Kill all members but the ``spared`` until none is left."""
    for _ in range(MAX_ROUNDS):
        found = [pid for pid in members(uid, marker) if pid not in spared]
        if not found:
            return
        send(found, signal.SIGKILL)


def send(pids: Collection[int], sent: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, sent)


def memory_bytes(pids: Collection[int], limit: int) -> int:
    """What ``pids`` hold together; pages that they share are told apart only where the sum is above ``limit``.

    Where the kernel refuses to tell shares (no right to trace another user), shared pages count for each process.
    """
    held = {pid: _sum(ANONYMOUS, _text(pid, "status")) for pid in pids}
    if sum(held.values()) * 1024 <= limit:
        return sum(held.values()) * 1024
    return sum(_share(pid) or kilobytes for pid, kilobytes in held.items()) * 1024


def uid_in_use(uid: int) -> bool:
    return any(True for _ in _of_uid(uid))


def threads_of_user() -> int:
    """How many threads this user runs now; the kernel counts them against RLIMIT_NPROC (macOS counts processes)."""
    mine = os.getuid()
    if not PROC.is_dir():
        listed = subprocess.run(["ps", "-U", str(mine), "-o", "pid="], capture_output=True, text=True, check=True)
        return len(listed.stdout.split())
    statuses = [_text(pid, "status") for pid in _pids()]
    return sum(_sum(THREADS, status) for status in statuses if _uid(status) == mine)


def _of_uid(uid: int) -> Iterator[int]:
    for pid in _pids():
        status = _text(pid, "status")
        if _uid(status) == uid and ZOMBIE not in status:
            yield pid


def _marked(marker: str) -> Iterator[int]:
    wanted = f"{MARKER}={marker}".encode()
    return (pid for pid in _pids() if wanted in _text(pid, "environ").split(b"\0"))


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(PROC) if name.isdigit()] if PROC.is_dir() else []


def _text(pid: int, name: str) -> bytes:
    """A file of a process; empty if it is gone or not ours to read."""
    try:
        with open(f"{PROC}/{pid}/{name}", "rb", buffering=0) as file:
            return file.readall()
    except OSError:
        return b""


def _share(pid: int) -> int:
    return _sum(SHARE, _text(pid, "smaps_rollup"))


def _uid(status: bytes) -> int:
    found = UID.search(status)
    return int(found[1]) if found else -1


def _sum(pattern: re.Pattern[bytes], text: bytes) -> int:
    return sum(map(int, pattern.findall(text)))
