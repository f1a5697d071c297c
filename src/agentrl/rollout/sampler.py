"""The sampler: claims groups from the store and plays them, until the stream ends or it is told to stop.

Its loop consumes claims, as many at once as the pace wants, waits for room and for admission (the published version
moving on), and is unblocked by episodes that finish and by time. Beside it beat a heart, which keeps the leases, and
two watches: of the fleet and of the tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentrl.config import Budget
from agentrl.errors import GatewayError, LeaseLost, WaitTimeout
from agentrl.rollout.budget import BudgetGuard
from agentrl.rollout.fleet import FleetWatch
from agentrl.rollout.group import GroupRunner
from agentrl.rollout.waiting import awaited
from agentrl.store.base import HEARTBEAT_SECONDS, Admission, Store
from agentrl.telemetry import Stopwatch
from agentrl.types import Claim, Split, Worker

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
MAX_IDLE_SECONDS = 0.5
LOOK_SECONDS = 1.0


class MCPSampler:
    """Plays groups with MCP tools, as many at once as the runner's pace wants; ``admission`` None takes whatever is
    there. Without ``fleet`` it is the only sampler, on one engine; without ``budget`` nothing is limited."""

    def __init__(
        self,
        runner: GroupRunner,
        worker: Worker,
        *,
        admission: Admission | None,
        fleet: FleetWatch | None = None,
        budget: BudgetGuard | None = None,
    ) -> None:
        self._runner = runner
        self._worker = worker
        self._admission = admission
        self.budget = budget or BudgetGuard(runner.store, Budget())
        self._fleet = fleet or FleetWatch(runner.store, worker, registered=False)
        self._drain_seconds = 0.0
        self._stop = asyncio.Event()
        self._ended = asyncio.Event()
        self._claims: dict[str, Claim] = {}
        self._idle = Stopwatch()
        self.num_groups = 0

    @property
    def _store(self) -> Store:
        return self._runner.store

    def stop(self, *, drain_seconds: float) -> None:
        """Claim nothing more; running groups get ``drain_seconds`` and are then given back."""
        self._drain_seconds = drain_seconds
        self._stop.set()
        self._ended.set()
        self._runner.pace.freed.set()

    async def run(self) -> None:
        """Return when the stream has ended, ``stop`` was called, or the budget pauses the run; raise what ends the run
        (a tool server for good)."""
        await self._store.heartbeat(self._worker)
        await self.budget.begin()
        await self._look()
        watches = [self._beat(), self._watch_tools(), self._watch_fleet()]
        beside = [asyncio.create_task(watch) for watch in watches]
        sampling = asyncio.create_task(self._sample(), name="sampling")
        running: list[asyncio.Future[Any]] = [sampling, *beside]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in beside:
                if task.done():
                    task.result()
            await sampling
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await self._give_back()

    async def _sample(self) -> None:
        """Start groups while some will come, then wait for those under way; the first that breaks cancels them."""
        idle = IDLE_SECONDS
        try:
            async with asyncio.TaskGroup() as groups:
                while not self._stop.is_set() and await self.budget.may_claim():
                    room, num_started = await self._start_groups(groups)
                    if room and not num_started and await stream_ended(self._store):
                        break
                    idle = min(idle * 1.5, MAX_IDLE_SECONDS) if room and not num_started else IDLE_SECONDS
                    await self._wait_for_room_or_groups(room, idle)
        except ExceptionGroup as broken:
            raise broken.exceptions[0] from broken

    async def _start_groups(self, groups: asyncio.TaskGroup) -> tuple[bool, int]:
        """Close the gap to what the pace wants: one claim, then twice as many at once, until no group is to be had.

        Return whether there is room left, and how many groups were started.
        """
        num_started, together = 0, 1
        while (missing := self._missing_groups()) and not self._stop.is_set():
            claims = await asyncio.gather(*(self._claim() for _ in range(min(missing, together))))
            for claim in filter(None, claims):
                self._start(groups, claim)
                num_started += 1
            if None in claims:
                return True, num_started
            together *= 2
        return missing > 0, num_started

    def _missing_groups(self) -> int:
        pace = self._runner.pace
        pace.see(self._fleet.seen())
        return pace.scheduler.groups_to_start(self._runner.rollout_options.num_generations)

    async def _claim(self) -> Claim | None:
        """Held from here on, so that it is given back even when nobody comes to play it."""
        splits = (Split.EVAL, Split.TEST, Split.TRAIN)
        claim = await self._store.claim(self._worker.id, splits=splits, admission=self._admission)
        if claim is not None:
            self._claims[claim.id] = claim
        return claim

    def _start(self, groups: asyncio.TaskGroup, claim: Claim) -> None:
        claim = replace(claim, waited_seconds=self._idle.lap())
        self._runner.pace.group_started(claim.id, claim.task.num_slots - len(claim.finished))
        groups.create_task(self._play(claim), name=claim.task.id)

    async def _wait_for_room_or_groups(self, room: bool, idle_seconds: float) -> None:
        """With room left, until a group has ended (a claim may be admitted then) or for ``idle_seconds``; without,
        until an episode has finished, or the fleet has changed."""
        event = self._ended if room else self._runner.pace.freed
        await wait_at_most(event, idle_seconds if room else LOOK_SECONDS)
        event.clear()
        if not room:
            self._idle.lap()

    async def _play(self, claim: Claim) -> None:
        try:
            verdict = await self._within_drain(claim)
            if verdict is not None:
                self.num_groups += 1
                del self._claims[claim.id]
        except LeaseLost:
            logger.warning(
                "%s: another sampler has this group now; what was finished is kept as expired", claim.task.id
            )
            del self._claims[claim.id]
        finally:
            self._runner.pace.group_ended(claim.id)
            self._ended.set()

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
            waiting = "" if self._claims else self.budget.awaits or await awaited(self._store, self._admission)
            await self._store.heartbeat(replace(self._worker, waiting_for=waiting))

    async def _watch_fleet(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self._look()

    async def _look(self) -> None:
        await self._fleet.look()
        self._runner.pace.see(self._fleet.seen())

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
    unfinished = [(await store.queue(split)).unfinished for split in Split]
    return not any(unfinished)


async def wait_at_most(event: asyncio.Event, seconds: float) -> None:
    """Not by ``wait_for``, which on Python 3.11 loses a cancellation that arrives with the event."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


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
