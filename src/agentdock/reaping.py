"""How process groups end on each platform, also when we are killed ourselves.

A group is registered with the guardian: one small process that reads our pipe and kills what is registered when the
pipe ends. That covers SIGKILL of this process for the whole group. Without POSIX groups only the pipe's end remains.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

HAS_GROUPS = hasattr(os, "killpg")


def signal_group(pid: int, *, force: bool) -> None:
    """Ask (or force) the group that ``pid`` leads to end. A group that is gone is no error."""
    with suppress(ProcessLookupError, PermissionError):
        if HAS_GROUPS:
            os.killpg(pid, signal.SIGKILL if force else signal.SIGTERM)
        else:
            os.kill(pid, signal.SIGTERM)


class Guardian:
    """Kills the registered groups when this process ends, however it ends."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._groups: set[int] = set()

    def add(self, pid: int) -> None:
        """Register the group that ``pid`` leads."""
        if self._owner != os.getpid():
            self._groups.clear()
        self._groups.add(pid)
        self._tell(f"+{pid}\n")

    def remove(self, pid: int) -> None:
        """Forget the group: it is gone."""
        self._groups.discard(pid)
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=2)

    def _tell(self, line: str) -> None:
        if not HAS_GROUPS:
            return
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())

    def _start(self) -> None:
        self._owner = os.getpid()
        script = Path(__file__).with_name("guardian.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env={},
            start_new_session=HAS_GROUPS,
        )
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"+{pid}\n" for pid in self._groups).encode())


guardian = Guardian()
atexit.register(guardian.close)
