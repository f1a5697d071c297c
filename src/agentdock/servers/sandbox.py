"""Run Python code in a fresh, limited process (tier ``limits``): rlimits, clean environment, own user where we may.

This bounds accidents and keeps calls apart. It is no jail: the code can read world-readable files and use the network.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from agentdock.reaping import HAS_GROUPS, guardian, signal_group
from agentdock.servers.sweep import MARKER, count_marked, kill_leftovers, threads_of_user, uid_in_use

TIER = "limits"
CHILD = Path(__file__).with_name("sandbox_child.py")
UIDS = range(20_000, 60_000)
POLL_SECONDS = 0.005
COUNT_SECONDS = 0.1
DRAIN_SECONDS = 1.0
CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``output_bytes`` holds for stdout and stderr each; ``memory_bytes`` is address space of one process."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 20
    memory_bytes: int = 2 * 1024**3
    file_bytes: int = 64 * 1024**2
    processes: int = 64
    output_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the code printed and how it ended; ``stopped`` names the limit that ended it, if one did."""

    stdout: str
    stderr: str
    exit_code: int
    stopped: str
    truncated: bool
    seconds: float
    own_user: bool


class Sandbox:
    """Runs code, at most ``parallel`` at once."""

    def __init__(self, limits: Limits, *, parallel: int) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(parallel)
        self._uids: set[int] = set()
        self._own_user: bool | None = None
        self._probing = asyncio.Lock()

    async def run(self, code: str) -> Execution:
        """Run ``code``; on return, and on cancellation, none of its processes and files is left."""
        async with self._slots:
            own_user = await self._may_change_user()
            with self._uid(own_user) as uid, _folder(code, uid) as folder:
                return await _run(folder, self._limits, uid)

    async def _may_change_user(self) -> bool:
        """Whether a call can get a user of its own; found out by doing it once."""
        async with self._probing:
            if self._own_user is None:
                self._own_user = os.geteuid() == 0 and sys.platform == "linux" and await self._probe()
        return self._own_user

    async def _probe(self) -> bool:
        try:
            with self._uid(True) as uid, _folder("import json", uid) as folder:
                execution = await _run(folder, replace(self._limits, wall_seconds=10), uid)
        except PermissionError:
            return False
        return execution.exit_code == 0

    @contextmanager
    def _uid(self, wanted: bool) -> Iterator[int | None]:
        if not wanted:
            yield None
            return
        uid = random.choice(UIDS)
        while uid in self._uids or uid_in_use(uid):
            uid = random.choice(UIDS)
        self._uids.add(uid)
        try:
            yield uid
        finally:
            self._uids.discard(uid)


@contextmanager
def _folder(code: str, uid: int | None) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="agentdock-"))
    try:
        (folder / "main.py").write_text(code, encoding="utf-8", errors="replace")
        if uid is not None:
            os.chown(folder, uid, uid)
            os.chown(folder / "main.py", uid, uid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _run(folder: Path, limits: Limits, uid: int | None) -> Execution:
    marker = uuid.uuid4().hex
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-X", "utf8", str(CHILD), json.dumps(_options(limits, uid))),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=_environment(folder, marker),
        start_new_session=HAS_GROUPS,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    guardian.add(process.pid)
    readers = [asyncio.create_task(_read(pipe, limits.output_bytes)) for pipe in (process.stdout, process.stderr)]
    try:
        stopped = await _watch(process, limits, marker if uid is None and os.geteuid() == 0 else "")
    finally:
        signal_group(process.pid, force=True)
        kill_leftovers(uid, marker)
        guardian.remove(process.pid)
    await asyncio.wait(readers, timeout=DRAIN_SECONDS)
    for reader in readers:
        reader.cancel()
    outputs = [reader.result() if reader.done() and not reader.cancelled() else (b"", 0) for reader in readers]
    await _exited(process, DRAIN_SECONDS)
    exit_code = process.returncode if process.returncode is not None else -signal.SIGKILL
    return Execution(
        stdout=_shown("stdout", *outputs[0]),
        stderr=_shown("stderr", *outputs[1]),
        exit_code=exit_code,
        stopped=stopped or (f"CPU time limit of {limits.cpu_seconds} s" if exit_code == -signal.SIGXCPU else ""),
        truncated=any(total > len(kept) for kept, total in outputs),
        seconds=time.monotonic() - began,
        own_user=uid is not None,
    )


def _options(limits: Limits, uid: int | None) -> dict[str, object]:
    processes = limits.processes + (0 if uid is not None else threads_of_user())
    return {"limits": asdict(limits) | {"processes": processes}, "uid": uid, "parent": os.getpid()}


def _environment(folder: Path, marker: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        MARKER: marker,
    }


async def _read(pipe: asyncio.StreamReader, limit: int) -> tuple[bytes, int]:
    """The first ``limit`` bytes of ``pipe`` and how many there were; the rest is read and dropped."""
    kept = bytearray()
    total = 0
    while chunk := await pipe.read(CHUNK_BYTES):
        total += len(chunk)
        kept += chunk[: limit - len(kept)]
    return bytes(kept), total


async def _watch(process: asyncio.subprocess.Process, limits: Limits, marker: str) -> str:
    """Wait for the end and return the limit that was reached; with ``marker``, count processes ourselves."""
    deadline = time.monotonic() + limits.wall_seconds
    while not await _exited(process, min(COUNT_SECONDS, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            return f"wall time limit of {limits.wall_seconds:g} s"
        if marker and count_marked(marker) > limits.processes:
            return f"limit of {limits.processes} processes"
    return ""


async def _exited(process: asyncio.subprocess.Process, seconds: float) -> bool:
    """Wait by polling: ``process.wait`` also waits for pipes that a detached child may hold open."""
    deadline = time.monotonic() + seconds
    while process.returncode is None:
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(POLL_SECONDS)
    return True


def _shown(name: str, kept: bytes, total: int) -> str:
    text = kept.decode(errors="replace")
    return (
        text if total == len(kept) else f"{text}\n[{name} truncated: the first {len(kept)} of {total} bytes are shown]"
    )
