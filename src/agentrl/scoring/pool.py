"""A pool of worker processes that can be killed; safe from any thread, event loop, daemon or forked process.

Each thread of the pool drives one process. A job past its deadline costs its process group the life and nothing else:
the next job starts a fresh process.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agentrl.errors import ScoringError
from agentrl.scoring.frames import receive, send

START_SECONDS = 60.0
QUEUE_SECONDS = 600.0


class JobCrashed(ScoringError):
    """The function raised."""


class JobTimedOut(ScoringError):
    """The job reached its deadline and its process was killed.

    ``starved``: the process had less than half of that time on a processor, so the machine was busy, not the job hard.
    """

    starved = False


class WorkerEnded(ScoringError):
    """The process ended in the middle of the job."""


class WorkerUnavailable(ScoringError):
    """No process could be had, or the job's module cannot be imported there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Call ``targets[0]`` (``module:attr``) with JSON ``arguments``; all targets are imported before the clock starts.

    ``deadline_seconds`` is running time: waiting for a process and importing have limits of their own.
    """

    targets: tuple[str, ...]
    arguments: tuple[Any, ...]
    deadline_seconds: float
    memory_bytes: int | None = None

    def message(self) -> dict[str, Any]:
        return {
            "targets": self.targets,
            "arguments": self.arguments,
            "cpu_seconds": self.deadline_seconds * (os.cpu_count() or 1) + 1,
            "memory_bytes": self.memory_bytes,
        }


class WorkerProcess:
    """One child and the socket to it."""

    def __init__(self) -> None:
        self._processor_seconds_at_end: float | None = None
        self._channel, theirs = socket.socketpair()
        search_path = os.pathsep.join(path or os.getcwd() for path in sys.path)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "agentrl.scoring.worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": search_path},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, job: Job) -> Any:
        """The value of the job. On any error but ``JobCrashed`` and a failed import the process is gone."""
        reply = self._exchange(job.message(), START_SECONDS, "import its module")
        if "error" in reply:
            raise WorkerUnavailable(f"{job.targets[-1]} cannot be imported in a worker: {reply['error']}")
        before = processor_seconds(self.pid)
        try:
            reply = self._exchange(None, job.deadline_seconds, "finish")
        except JobTimedOut as late:
            after = self._processor_seconds_at_end
            if before is not None and after is not None:
                late.starved = after - before < job.deadline_seconds / 2
            raise
        if "error" in reply:
            raise JobCrashed(reply["error"])
        return reply["result"]

    def _exchange(self, message: dict[str, Any] | None, seconds: float, what: str) -> dict[str, Any]:
        self._channel.settimeout(max(seconds, 0.001))
        try:
            if message is not None:
                send(self._channel, message)
            reply = receive(self._channel)
        except TimeoutError:
            self._processor_seconds_at_end = processor_seconds(self.pid)
            self.kill()
            raise JobTimedOut(f"did not {what} within {seconds:g} s; its process was killed") from None
        except OSError:
            reply = None
        if reply is None:
            raise WorkerEnded(self.end_reason())
        return reply

    def kill(self) -> None:
        """End the process and everything it started."""
        self._channel.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()

    def end_reason(self) -> str:
        """How the process ended by itself; then the rest of its group is ended too."""
        code = None
        for _ in range(50):
            if (code := exit_code(self._process)) is not None:
                break
            time.sleep(0.01)
        self.kill()
        if code is None:
            return "the worker process closed its connection"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the worker process ended itself ({how})"


def exit_code(process: subprocess.Popen[bytes]) -> int | None:
    """Its exit code, negative for a signal; None while it runs. Where the system can, it is not reaped yet, so that its
    group's number stays its own until the group is killed (macOS can from Python 3.13)."""
    if not hasattr(os, "waitid"):
        return process.poll()
    ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
    if ended is None:
        return None
    return -ended.si_status if ended.si_code in (os.CLD_KILLED, os.CLD_DUMPED) else ended.si_status


def processor_seconds(pid: int) -> float | None:
    """Processor time of a process so far; None where the system does not say."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class WorkerPool:
    """``size`` processes, started when there is work. ``restarts`` counts processes that had to be replaced."""

    def __init__(self, size: int) -> None:
        self.restarts = 0
        self._idle: list[WorkerProcess] = []
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="scoring")

    def submit(self, job: Job) -> Future[Any]:
        return self._threads.submit(self._run, job, time.monotonic())

    def run(self, job: Job) -> Any:
        return self.submit(job).result()

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        while self._idle:
            self._idle.pop().kill()

    def _run(self, job: Job, submitted: float) -> Any:
        if (waited := time.monotonic() - submitted) > QUEUE_SECONDS:
            raise WorkerUnavailable(f"no worker process was free for {waited:.0f} s")
        worker = self._take()
        try:
            value = worker.run(job)
        except (JobCrashed, WorkerUnavailable):
            self._give(worker)
            raise
        except ScoringError:
            with self._lock:
                self.restarts += 1
            raise
        self._give(worker)
        return value

    def _take(self) -> WorkerProcess:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        try:
            return WorkerProcess()
        except OSError as error:
            raise WorkerUnavailable(f"a worker process could not be started: {error}") from error

    def _give(self, worker: WorkerProcess) -> None:
        with self._lock:
            self._idle.append(worker)


_pools: dict[str, WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(name: str) -> WorkerPool:
    """The process-wide pool of that name; a slow user scorer never takes the processes of ``math``."""
    with _pools_lock:
        if name not in _pools:
            _pools[name] = WorkerPool(max(2, min(8, (os.cpu_count() or 2) // 2)))
        return _pools[name]


def _forget_pools() -> None:
    """A forked child has the parent's objects but neither its threads nor a right to its processes."""
    global _pools, _pools_lock
    _pools, _pools_lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget_pools)
