"""One contained process: started in a tier, watched while it works, ended with everything that it started."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentdock.reaping import HAS_GROUPS, guardian, signal_group
from agentdock.sandbox import container, namespaces
from agentdock.sandbox.capture import Capture
from agentdock.sandbox.limits import Limits
from agentdock.sandbox.quantities import written
from agentdock.sandbox.sweep import MARKER, kill_leftovers, members, memory_bytes, threads_of_user
from agentdock.sandbox.tiers import Choice
from agentdock.sandbox.workspace import Workspace

CHILD = Path(__file__).with_name("child")
LOOK_SECONDS = 0.1
END_SECONDS = 1.0
OUT_OF_CPU = (-signal.SIGXCPU, 128 + signal.SIGXCPU) if HAS_GROUPS else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """All that a start needs: the tier in use and the image of its containers."""

    choice: Choice
    image: str

    def command(self, workspace: Workspace, limits: Limits, marker: str, *, report: bool) -> list[str]:
        """The command line of an interpreter that confines itself and runs the workspace's program."""
        tier = self.choice.containment.tier
        front, place, child, interpreter = [], workspace.path, CHILD, sys.executable
        if tier != "limits":
            place, child = namespaces.INSIDE, namespaces.CHILD_INSIDE
        if tier == "namespaces":
            front = namespaces.command(workspace.path, CHILD, network=limits.network, tmp_bytes=limits.disk_bytes)
        elif tier == "container":
            interpreter = "python3"
            front = container.command(
                workspace.path,
                CHILD,
                image=self.image,
                name=_container_name(marker),
                uid=workspace.uid,
                gvisor=self.choice.gvisor,
                limits=limits,
            )
        processes = limits.processes + (0 if workspace.uid is not None else threads_of_user())
        options = {
            "limits": asdict(limits) | {"processes": processes},
            "uid": None if tier == "container" else workspace.uid,
            "parent": os.getpid() if tier == "limits" else None,
            "folder": str(place),
            "landlock": tier == "limits",
            "report": report,
        }
        return [*front, interpreter, "-I", "-X", "utf8", str(child), json.dumps(options)]

    def environment(self, workspace: Workspace, marker: str) -> dict[str, str]:
        place = workspace.path if self.choice.containment.tier == "limits" else namespaces.INSIDE
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(place),
            "TMPDIR": str(place),
            "LANG": "C.UTF-8",
            "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            MARKER: marker,
        }


class Contained:
    """A running interpreter in ``workspace`` and the ends of its pipes. ``end`` must be awaited, whatever happens."""

    def __init__(
        self, process: asyncio.subprocess.Process, launch: Launch, workspace: Workspace, limits: Limits, marker: str
    ) -> None:
        self._process = process
        self._launch = launch
        self._workspace = workspace
        self._limits = limits
        self._marker = marker
        self.exited = asyncio.create_task(process.wait())

    @classmethod
    async def start(
        cls, launch: Launch, workspace: Workspace, limits: Limits, captures: tuple[Capture, Capture], *, report: bool
    ) -> Contained:
        marker = uuid.uuid4().hex
        stdout, stderr = captures
        process = await asyncio.create_subprocess_exec(
            *launch.command(workspace, limits, marker, report=report),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            cwd=workspace.path,
            env=launch.environment(workspace, marker),
            start_new_session=HAS_GROUPS,
        )
        guardian.add(process.pid)
        for capture in captures:
            capture.handed_over()
        return cls(process, launch, workspace, limits, marker)

    async def limit_reached(self, done: asyncio.Future[Any], *, wall_seconds: float) -> str:
        """Wait until ``done`` or the process has ended; the limit that was reached before that, or nothing."""
        deadline = time.monotonic() + wall_seconds
        while True:
            pause = min(LOOK_SECONDS, deadline - time.monotonic())
            ended, _ = await asyncio.wait(
                {done, self.exited}, timeout=max(0.0, pause), return_when=asyncio.FIRST_COMPLETED
            )
            if ended:
                return ""
            if time.monotonic() >= deadline:
                return f"wall time limit of {wall_seconds:g} s"
            reached = await asyncio.to_thread(self._overdrawn)
            if reached:
                return reached

    def exit_code(self) -> int:
        return self._process.returncode if self._process.returncode is not None else -signal.SIGKILL

    def cpu_limit_reached(self) -> str:
        reached = self.exit_code() in OUT_OF_CPU
        return f"CPU time limit of {self._limits.cpu_seconds} s" if reached else ""

    async def end(self) -> None:
        """Kill what is left; on return all of it is gone."""
        signal_group(self._process.pid, force=True)
        kill_leftovers(self._workspace.uid, self._marker)
        guardian.remove(self._process.pid)
        if self._launch.choice.containment.tier == "container":
            await asyncio.to_thread(container.remove, _container_name(self._marker))
        await asyncio.wait({self.exited}, timeout=END_SECONDS)

    def _overdrawn(self) -> str:
        """The limit that no system call enforces and that is exceeded now, or nothing."""
        pids = members(self._workspace.uid, self._marker)
        if self._workspace.uid is None and os.geteuid() == 0 and len(pids) > self._limits.processes:
            return f"limit of {self._limits.processes} processes"
        if memory_bytes(pids, self._limits.memory_bytes) > self._limits.memory_bytes:
            return f"memory limit of {written(self._limits.memory_bytes)} for all processes together"
        if self._workspace.num_bytes() > self._limits.disk_bytes:
            return f"limit of {written(self._limits.disk_bytes)} in the working folder"
        return ""


@contextmanager
def captured(limits: Limits) -> Iterator[tuple[Capture, Capture]]:
    """Captures for stdout and stderr that are closed in the end."""
    captures = (Capture("stdout", limit=limits.output_bytes), Capture("stderr", limit=limits.output_bytes))
    try:
        yield captures
    finally:
        for capture in captures:
            capture.close()


def _container_name(marker: str) -> str:
    return f"agentdock-{marker}"
