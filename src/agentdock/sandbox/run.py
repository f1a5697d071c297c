"""Run Python code in a fresh process of the strongest tier there is; on return nothing of it is left but its result."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from agentdock.sandbox.launch import Contained, Launch, captured
from agentdock.sandbox.limits import Containment, Execution, Limits
from agentdock.sandbox.sweep import uid_in_use
from agentdock.sandbox.tiers import TIERS, Choice, choose
from agentdock.sandbox.workspace import PROGRAM, Workspace

UIDS = range(20_000, 60_000)
PROBE_SECONDS = 20.0


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
        self.limits = limits
        self._slots = asyncio.Semaphore(parallel)
        self._uids: set[int] = set()
        self._tiers = tiers
        self._min_tier = min_tier
        self._image = image
        self._launch: Launch | None = None
        self._choosing = asyncio.Lock()

    async def run(
        self, code: str, *, wall_seconds: float | None = None, inputs: Mapping[str, bytes] | None = None
    ) -> Execution:
        """Run ``code`` with the files ``inputs`` beside it, within ``wall_seconds`` if that is less than the limit.

        On return, and on cancellation, none of its processes and files is left. Raises ``TierMissing`` where no tier
        is strong enough.
        """
        limits = self.limits
        if wall_seconds is not None:
            limits = replace(limits, wall_seconds=min(wall_seconds, limits.wall_seconds))
        async with self._slots:
            launch = await self._ready()
            with self._workspace(launch.choice.containment.own_user) as workspace:
                for name, body in (inputs or {}).items():
                    workspace.put(name, body)
                return await _run(code, launch, workspace, limits)

    async def require(self) -> None:
        """Raise ``TierMissing`` now rather than at the first call, if a tier above the weakest is asked for."""
        if self._min_tier != "limits":
            await self.choice()

    async def choice(self) -> Choice:
        """The tier in use, found out once."""
        return (await self._ready()).choice

    async def _ready(self) -> Launch:
        async with self._choosing:
            if self._launch is None:
                choice = await choose(self._tiers, self._min_tier, self._image, self._probe)
                self._launch = Launch(choice=choice, image=self._image)
        return self._launch

    async def _probe(self, tier: str, own_user: bool, gvisor: bool) -> tuple[str, str]:
        held = Containment(tier=tier, own_user=own_user, network="", readable="")
        launch = Launch(choice=Choice(containment=held, gvisor=gvisor, missing=()), image=self._image)
        limits = replace(self.limits, wall_seconds=PROBE_SECONDS)
        try:
            with self._workspace(own_user) as workspace:
                execution = await _run("import json", launch, workspace, limits, report=True)
        except OSError as error:
            return "", str(error)
        if execution.exit_code == 0 and execution.stdout:
            return execution.stdout, ""
        ended = execution.stderr.strip().splitlines() or [execution.stopped or f"exit code {execution.exit_code}"]
        return "", ended[-1]

    @contextmanager
    def _workspace(self, own_user: bool) -> Iterator[Workspace]:
        uid = self._free_uid() if own_user else None
        workspace = Workspace(uid)
        try:
            yield workspace
        finally:
            workspace.remove()
            if uid is not None:
                self._uids.discard(uid)

    def _free_uid(self) -> int:
        """A user that runs nothing, reserved until it is discarded."""
        uid = random.choice(UIDS)
        while uid in self._uids or uid_in_use(uid):
            uid = random.choice(UIDS)
        self._uids.add(uid)
        return uid


async def _run(code: str, launch: Launch, workspace: Workspace, limits: Limits, *, report: bool = False) -> Execution:
    workspace.put(PROGRAM, code.encode(errors="replace"))
    before = workspace.shot()
    began = time.monotonic()
    with captured(limits) as captures:
        process = await Contained.start(launch, workspace, limits, captures, report=report)
        try:
            stopped = await process.limit_reached(process.exited, wall_seconds=limits.wall_seconds)
        finally:
            await process.end()
        stdout, stderr = (capture.take() for capture in captures)
    return Execution(
        stdout=stdout.text,
        stderr=stderr.text,
        exit_code=process.exit_code(),
        stopped=stopped or process.cpu_limit_reached(),
        truncated=stdout.truncated or stderr.truncated,
        seconds=time.monotonic() - began,
        files=await asyncio.to_thread(workspace.changed, before),
        containment=launch.choice.containment,
    )
