"""The sampler: workers that claim groups from the store and play them, until the stream ends or it is told to stop.

Each worker consumes claims, waits for its turn to ask and for admission (the published version moving on) and is
unblocked by it; one more task beats the heart that keeps the leases.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.errors import GatewayError, LeaseLost, WaitTimeout
from agentrl.rollout.group import GroupRunner
from agentrl.store.base import HEARTBEAT_SECONDS, Admission, Store
from agentrl.telemetry import Stopwatch
from agentrl.types import Claim, Split, TaskStatus, Worker

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
MAX_IDLE_SECONDS = 0.5


class MCPSampler:
    """Plays groups with MCP tools. ``num_workers`` groups at once; ``admission`` None takes whatever is there."""

    def __init__(
        self,
        runner: GroupRunner,
        worker: Worker,
        *,
        num_workers: int,
        admission: Admission | None,
    ) -> None:
        self._runner = runner
        self._worker = worker
        self._num_workers = num_workers
        self._admission = admission
        self._drain_seconds = 0.0
        self._stop = asyncio.Event()
        self._asking = asyncio.Lock()
        self._ended = False
        self._claims: dict[str, Claim] = {}
        self.num_groups = 0

    @property
    def _store(self) -> Store:
        return self._runner.store

    def stop(self, *, drain_seconds: float) -> None:
        """Claim nothing more; running groups get ``drain_seconds`` and are then given back."""
        self._drain_seconds = drain_seconds
        self._stop.set()

    async def run(self) -> None:
        """Return when the stream has ended or ``stop`` was called; raise what ends the run (a tool server for good)."""
        await self._store.heartbeat(self._worker)
        workers = [asyncio.create_task(self._work(), name=f"group worker {i}") for i in range(self._num_workers)]
        heart = asyncio.create_task(self._beat(), name="heartbeat")
        tools = asyncio.create_task(self._watch_tools(), name="tools")
        everything = asyncio.gather(*workers)
        running: list[asyncio.Future[Any]] = [*workers, everything, heart, tools]
        try:
            await asyncio.wait({everything, heart, tools}, return_when=asyncio.FIRST_COMPLETED)
            for task in (heart, tools):
                if task.done():
                    task.result()
            await everything
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._give_back()

    async def _work(self) -> None:
        """Play one group after the other."""
        watch = Stopwatch()
        while (claim := await self._next_claim()) is not None:
            await self._play(replace(claim, waited_seconds=watch.lap()))
            watch.lap()

    async def _next_claim(self) -> Claim | None:
        """The next group, None when none will come. Of the workers that found none one asks at a time."""
        if self._stop.is_set():
            return None
        if (claim := await self._claim()) is not None:
            return claim
        idle = IDLE_SECONDS
        async with self._asking:
            while not (self._stop.is_set() or self._ended):
                if (claim := await self._claim()) is not None:
                    return claim
                if await stream_ended(self._store):
                    self._ended = True
                    break
                await wait_at_most(self._stop, idle)
                idle = min(idle * 1.5, MAX_IDLE_SECONDS)
        return None

    async def _claim(self) -> Claim | None:
        splits = (Split.EVAL, Split.TEST, Split.TRAIN)
        return await self._store.claim(self._worker.id, splits=splits, admission=self._admission)

    async def _play(self, claim: Claim) -> None:
        self._claims[claim.task.id] = claim
        try:
            verdict = await self._within_drain(claim)
            if verdict is not None:
                self.num_groups += 1
                del self._claims[claim.task.id]
        except LeaseLost:
            logger.warning(
                "%s: another sampler has this group now; what was finished is kept as expired", claim.task.id
            )
            del self._claims[claim.task.id]

    async def _within_drain(self, claim: Claim) -> object | None:
        """The group's verdict, or None when the sampler was stopped and the drain time ran out."""
        playing = asyncio.create_task(self._runner.run(claim))
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({playing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                await asyncio.wait({playing}, timeout=self._drain_seconds)
            return playing.result() if playing.done() else None
        finally:
            for task in (playing, stopping):
                task.cancel()
            await asyncio.gather(playing, stopping, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._store.heartbeat(replace(self._worker, waiting_for="" if self._claims else "a group to claim"))

    async def _watch_tools(self) -> None:
        toolset = self._runner.toolset
        await toolset.failed.wait()
        raise GatewayError(toolset.failure, where="tools")

    async def _give_back(self) -> None:
        for claim in self._claims.values():
            with contextlib.suppress(LeaseLost):
                await self._store.release(claim)
        self._claims.clear()
        await self._store.leave(self._worker.id)


async def stream_ended(store: Store) -> bool:
    """No task will come any more, and none is left to play."""
    for split in (Split.TRAIN, Split.EVAL):
        if not await store.stream_ended(split):
            return False
    unfinished = [await store.count("task", status=status) for status in (TaskStatus.CREATED, TaskStatus.RUNNING)]
    return not any(unfinished)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


async def wait_for_service(store: Store, *, timeout_seconds: float) -> Sequence[str]:
    """URLs of engines that are up; an error that says what is missing after ``timeout_seconds``."""
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        urls = [service.url for service in await store.services() if service.status == "UP"]
        if urls:
            return urls
        await asyncio.sleep(0.1)
    raise WaitTimeout(
        f"no engine registered itself in the store within {timeout_seconds:g} s: "
        "start `agentrl serve` for this run, or name running engines with --engine_url"
    )
