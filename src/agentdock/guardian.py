"""Run as a script: read ``+PID`` and ``-PID`` lines; when the pipe or the parent ends, kill the groups left over."""

import contextlib
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int, groups: set[int]) -> None:
    """On Linux also notice the parent's death while a fork of it still holds the pipe open."""

    def woken(signum: int, frame: object) -> None:
        if os.getppid() != parent:
            kill(groups)
            os._exit(0)

    signal.signal(signal.SIGTERM, woken)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def kill(groups: set[int]) -> None:
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


def main() -> None:
    groups: set[int] = set()
    end_with_parent(int(sys.argv[1]), groups)
    for line in iter(sys.stdin.readline, ""):
        pid = int(line[1:])
        if line.startswith("+"):
            groups.add(pid)
        else:
            groups.discard(pid)
    kill(groups)


if __name__ == "__main__":
    main()
