"""Run Python code in a fresh process of the strongest tier there is; on return nothing of it is left but its result."""

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

from agentdock.reaping import HAS_GROUPS, guardian, signal_group
from agentdock.sandbox import container, namespaces
from agentdock.sandbox.limits import Containment, Execution, Limits
from agentdock.sandbox.sweep import MARKER, count_marked, kill_leftovers, threads_of_user, uid_in_use
from agentdock.sandbox.tiers import TIERS, Choice, choose

CHILD = Path(__file__).with_name("child")
UIDS = range(20_000, 60_000)
PROBE_SECONDS = 20.0
POLL_SECONDS = 0.005
COUNT_SECONDS = 0.1
DRAIN_SECONDS = 1.0
CHUNK_BYTES = 65_536
MAX_FILES_COUNTED = 20_000
OUT_OF_CPU = (-signal.SIGXCPU, 128 + signal.SIGXCPU) if HAS_GROUPS else ()


class Sandbox:
    """Runs code, at most ``parallel`` at once, in the first of ``tiers`` that works and none below ``min_tier``."""

    def __init__(
        self,
        limits: Limits,
        *,
        parallel: int,
        tiers: Sequence[str] = TIERS,
        min_tier: str = "limits",
        image: str = "",
    ) -> None:
        self._limits = limits
        self._slots = asyncio.Semaphore(parallel)
        self._uids: set[int] = set()
        self._tiers = tiers
        self._min_tier = min_tier
        self._image = image
        self._choice: Choice | None = None
        self._choosing = asyncio.Lock()

    async def run(self, code: str) -> Execution:
        """Run ``code``; on return, and on cancellation, none of its processes and files is left.

        Raises ``TierMissing`` where no tier is strong enough.
        """
        async with self._slots:
            choice = await self.choice()
            with self._uid(choice.containment.own_user) as uid, _folder(code, uid) as folder:
                return await self._run(folder, self._limits, choice, uid)

    async def require(self) -> None:
        """Raise ``TierMissing`` now rather than at the first call, if a tier above the weakest is asked for."""
        if self._min_tier != "limits":
            await self.choice()

    async def choice(self) -> Choice:
        """The tier in use, found out once."""
        async with self._choosing:
            if self._choice is None:
                self._choice = await choose(self._tiers, self._min_tier, self._image, self._probe)
        return self._choice

    async def _probe(self, tier: str, own_user: bool, gvisor: bool) -> tuple[str, str]:
        held = Containment(tier=tier, own_user=own_user, network="", files="")
        choice = Choice(containment=held, gvisor=gvisor, missing=())
        limits = replace(self._limits, wall_seconds=PROBE_SECONDS)
        try:
            with self._uid(own_user) as uid, _folder("import json", uid) as folder:
                execution = await self._run(folder, limits, choice, uid, report=True)
        except OSError as error:
            return "", str(error)
        if execution.exit_code == 0 and execution.stdout:
            return execution.stdout, ""
        ended = execution.stderr.strip().splitlines() or [execution.stopped or f"exit code {execution.exit_code}"]
        return "", ended[-1]

    async def _run(
        self, folder: Path, limits: Limits, choice: Choice, uid: int | None, *, report: bool = False
    ) -> Execution:
        tier = choice.containment.tier
        marker = uuid.uuid4().hex
        front, place, child, interpreter = [], folder, CHILD, sys.executable
        if tier != "limits":
            place, child = namespaces.INSIDE, namespaces.CHILD_INSIDE
        if tier == "namespaces":
            front = namespaces.command(folder, CHILD, network=limits.network, tmp_bytes=limits.disk_bytes)
        elif tier == "container":
            interpreter = "python3"
            front = container.command(
                folder,
                CHILD,
                image=self._image,
                name=f"agentdock-{marker}",
                uid=uid,
                gvisor=choice.gvisor,
                limits=limits,
            )
        options = _options(limits, None if tier == "container" else uid) | {
            "parent": os.getpid() if tier == "limits" else None,
            "folder": str(place),
            "landlock": tier == "limits",
            "report": report,
        }
        command = [*front, interpreter, "-I", "-X", "utf8", str(child), json.dumps(options)]
        try:
            return await _watched(command, folder, place, marker, limits, choice.containment, uid)
        finally:
            if tier == "container":
                await asyncio.to_thread(container.remove, f"agentdock-{marker}")

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


async def _watched(
    command: list[str],
    folder: Path,
    place: Path,
    marker: str,
    limits: Limits,
    containment: Containment,
    uid: int | None,
) -> Execution:
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env=_environment(place, marker),
        start_new_session=HAS_GROUPS,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    guardian.add(process.pid)
    readers = [asyncio.create_task(_read(pipe, limits.output_bytes)) for pipe in (process.stdout, process.stderr)]
    try:
        stopped = await _watch(process, folder, limits, marker if uid is None and os.geteuid() == 0 else "")
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
        stopped=stopped or (f"CPU time limit of {limits.cpu_seconds} s" if exit_code in OUT_OF_CPU else ""),
        truncated=any(total > len(kept) for kept, total in outputs),
        seconds=time.monotonic() - began,
        containment=containment,
    )


def _options(limits: Limits, uid: int | None) -> dict[str, object]:
    processes = limits.processes + (0 if uid is not None else threads_of_user())
    return {"limits": asdict(limits) | {"processes": processes}, "uid": uid}


def _environment(folder: Path, marker: str) -> dict[str, str]:
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "LANG": "C.UTF-8",
        "MPLBACKEND": "Agg",
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


async def _watch(process: asyncio.subprocess.Process, folder: Path, limits: Limits, marker: str) -> str:
    """Wait for the end and return the limit that was reached; with ``marker``, count processes ourselves."""
    deadline = time.monotonic() + limits.wall_seconds
    while not await _exited(process, min(COUNT_SECONDS, deadline - time.monotonic())):
        if time.monotonic() >= deadline:
            return f"wall time limit of {limits.wall_seconds:g} s"
        if marker and count_marked(marker) > limits.processes:
            return f"limit of {limits.processes} processes"
        if _bytes_in(folder) > limits.disk_bytes:
            return f"limit of {limits.disk_bytes} bytes in the working folder"
    return ""


def _bytes_in(folder: Path) -> float:
    """How much lies in ``folder``; more files than we care to count are too much."""
    total = 0
    for seen, path in enumerate(_files(folder)):
        if seen > MAX_FILES_COUNTED:
            return float("inf")
        with suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total


def _files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)


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
