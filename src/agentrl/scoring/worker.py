"""The child process that runs scorers: ``python -m agentrl.scoring.worker FD PARENT``.

It answers length-prefixed JSON jobs on a socket. Each job gets two replies, ``started`` (its module is imported) and
the result, so that the parent can time the import and the work apart. It ends when the parent does.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from agentrl.scoring.frames import receive, send
from agentrl.scoring.imports import resolve

WATCH_SECONDS = 1.0


def serve(channel: socket.socket) -> None:
    while (job := receive(channel)) is not None:
        answer(channel, job)


def answer(channel: socket.socket, job: dict[str, Any]) -> None:
    functions: list[Any] = []
    values: list[Any] = []
    failure = attempt(lambda: functions.extend(map(resolve, job["targets"])))
    send(channel, {"error": failure} if failure else {"started": True})
    if failure:
        return
    limit(job)
    failure = attempt(lambda: values.append(json.dumps(functions[0](*job["arguments"]), default=str)))
    send(channel, {"error": failure} if failure else {"result": json.loads(values[0])})


def attempt(work: Callable[[], object]) -> str:
    """Run ``work``; what it raised, or an empty string.

    Whatever a scorer raises is its result, told to the parent. Only what ends the process is not, hence ``Exception``.
    """
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:2000]
    return ""


def limit(job: dict[str, Any]) -> None:
    """Processor and memory limits of one job: an orphan cannot run on, a huge number cannot take the machine.

    macOS does not hold a process to ``RLIMIT_AS`` and may refuse to set it: there the memory is not limited.
    """
    used = resource.getrusage(resource.RUSAGE_SELF)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    seconds = int(used.ru_utime + used.ru_stime + job["cpu_seconds"]) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds if hard == resource.RLIM_INFINITY else min(seconds, hard), hard))
    if job.get("memory_bytes") and sys.platform == "linux":
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (job["memory_bytes"], hard))


def end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    os._exit(0)


def main() -> None:
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    os.dup2(2, 1)
    threading.Thread(target=end_with, args=(parent,), daemon=True).start()
    with socket.socket(fileno=descriptor) as channel:
        channel.set_inheritable(False)
        serve(channel)


if __name__ == "__main__":
    main()
