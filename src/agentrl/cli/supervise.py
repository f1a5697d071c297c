"""Child processes of a run: each in a group of its own, with a log; one that ends on its own, or lives and no longer
beats, fails the run by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentdock.reaping import guardian, signal_group
from agentrl.errors import ProcessDied
from agentrl.parallel import without_launcher
from agentrl.types import Worker

TAIL_LINES = 15


@dataclass(slots=True, kw_only=True)
class Child:
    name: str
    process: subprocess.Popen[bytes]
    log: Path
    expected_to_end: bool = False
    log_begins: int = 0
    beat: float | None = None
    beat_seen: float = 0.0

    def tail(self) -> str:
        """The last lines it wrote; those of an earlier start are left out."""
        written = self.log.read_bytes()[self.log_begins :].decode(errors="replace")
        lines = written.rstrip().splitlines()[-TAIL_LINES:]
        return "\n".join(f"    {line}" for line in lines) or "    (the log is empty)"


class Supervisor:
    """Starts ``agentrl`` commands, notices when one dies, stops them in the order asked for."""

    def __init__(self, log_folder: Path, *, env: Mapping[str, str]) -> None:
        self._log_folder = log_folder
        self._env = dict(env)
        self.children: dict[str, Child] = {}

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        num_threads: int,
        expected_to_end: bool = False,
        shows: bool = False,
    ) -> Child:
        """Run ``agentrl ARGUMENTS``. ``shows``: what it prints is for the person, only its errors go to the log."""
        self._log_folder.mkdir(parents=True, exist_ok=True)
        log = self._log_folder / f"{name}.log"
        with log.open("ab") as output:
            begins = output.tell()
            process = subprocess.Popen(
                [sys.executable, "-m", "agentrl", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=None if shows else output,
                stderr=output,
                env={**without_launcher(os.environ), **self._env, "OMP_NUM_THREADS": str(num_threads)},
                start_new_session=True,
            )
        guardian.add(process.pid)
        child = Child(name=name, process=process, log=log, expected_to_end=expected_to_end, log_begins=begins)
        self.children[name] = child
        return child

    def check(self) -> None:
        """Raise ``ProcessDied`` with the tail of its log for a child that ended, unless it was to end and did well."""
        for child in self.children.values():
            code = child.process.poll()
            if code is None or (code == 0 and child.expected_to_end):
                continue
            raise ProcessDied(
                f"the {child.name} process {how_it_ended(code)}; its last lines ({child.log}):\n{child.tail()}"
            )

    def check_beats(self, workers: Sequence[Worker], *, limit_seconds: float) -> None:
        """Raise ``ProcessDied`` for a child that runs and has written no heartbeat for ``limit_seconds``; it is killed,
        because it would not hear a request to stop. A suspended machine ages nobody: what counts is the time that
        passed here since the heartbeat last changed."""
        now = time.monotonic()
        for child in self.children.values():
            beat = max((worker.beat for worker in workers if worker.pid == child.process.pid), default=None)
            if beat is None or beat != child.beat:
                child.beat, child.beat_seen = beat, now
            elif now - child.beat_seen > limit_seconds and child.process.poll() is None:
                kill_group(child.process)
                raise ProcessDied(
                    f"the {child.name} process (pid {child.process.pid}) hangs: no heartbeat for "
                    f"{now - child.beat_seen:.0f} s (--heartbeat_timeout); it was killed. Its last lines "
                    f"({child.log}):\n{child.tail()}"
                )

    def ended(self, name: str) -> bool:
        return self.children[name].process.poll() is not None

    def stop(self, name: str, *, grace_seconds: float, ask: signal.Signals = signal.SIGTERM) -> None:
        """Ask by signal, wait ``grace_seconds``, then kill what is left of the group."""
        if name not in self.children or self.ended(name):
            return
        child = self.children[name]
        child.expected_to_end = True
        child.process.send_signal(ask)
        with suppress(subprocess.TimeoutExpired):
            child.process.wait(grace_seconds)
        kill_group(child.process)

    def kill_all(self) -> None:
        for child in self.children.values():
            kill_group(child.process)


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The child leads its own group, so whatever it started ends with it."""
    signal_group(process.pid, force=True)
    process.wait()
    guardian.remove(process.pid)


def how_it_ended(code: int) -> str:
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL (by a person, or by the system when memory ran out: see `dmesg`)"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
