"""The running copies of one server: one for all callers, one for each profile, or one for each session.

Copies start when they are needed, end when nobody has called them for a while, and never serve two keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentdock.calls import Busy, CallTimeout, ServerFailed, StartFailed, ToolInfo
from agentdock.queueing import FairQueue, places
from agentdock.spec import ServerSpec
from agentdock.states import ServerState, ServerStatus
from agentdock.upstream import Upstream

SESSION_IDLE_SECONDS = 900.0


@dataclass(slots=True)
class Member:
    """One copy and how it is used. ``ending`` is the last time that it was stopped."""

    upstream: Upstream
    last_used: float
    num_calls: int = 0
    ending: asyncio.Task[None] | None = None

    @property
    def is_ending(self) -> bool:
        return self.ending is not None and not self.ending.done()


class Pool:
    """Copies of the server of ``spec``, each made by ``make``.

    ``on_changed`` is told when the state or the tools changed. ``starts`` bounds how many copies of all servers start
    at once. A pool that knows its ``tools`` already need not start anything to list them.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        make: Callable[[Callable[[], None]], Upstream],
        starts: asyncio.Semaphore,
        tools: tuple[ToolInfo, ...] = (),
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.spec = spec
        self.tools = tools
        self._make = make
        self._starts = starts
        self._on_changed = on_changed
        self._members: dict[object, Member] = {}
        self._spares: list[Member] = []
        self._starting: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._past_restarts = 0
        self._held = ""
        self._told: tuple[Any, ...] = ()
        serving = spec.serving
        self._queue = FairQueue(serving.max_concurrency) if serving.max_concurrency else None
        self._tool_queues = {tool: FairQueue(limit) for tool, limit in serving.tool_concurrency.items()}

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def share(self) -> str:
        return self.spec.serving.share

    @property
    def num_calls(self) -> int:
        return sum(member.num_calls for member in self._copies())

    @property
    def num_waiting(self) -> int:
        """Calls that wait for others to end."""
        queues = [*self._tool_queues.values(), *([self._queue] if self._queue else [])]
        return sum(queue.num_waiting for queue in queues)

    @property
    def total_restarts(self) -> int:
        return self._past_restarts + sum(member.upstream.total_restarts for member in self._copies())

    def status(self) -> ServerStatus:
        copies = [member.upstream for member in self._copies()]
        state = self._state()
        shown = next((copy for copy in copies if copy.state is state), None)
        reason = self._held or next((copy.reason for copy in copies if copy.reason), "")
        return ServerStatus(
            name=self.name,
            state=state,
            restarts=max((copy.restarts for copy in copies), default=0),
            reason=shown.reason if shown is not None and shown.reason else reason,
            pid=shown.pid if shown else None,
            num_tools=len(self.tools),
            missing=self.spec.missing(),
            kind=self.spec.kind,
            share=self.share,
            num_waiting=self.num_waiting,
            num_copies=sum(copy.state is not ServerState.STOPPED for copy in copies),
            total_restarts=sum(copy.total_restarts for copy in copies),
        )

    async def start(self) -> None:
        """Start what should be there before the first call. A failure stays in the status."""
        self._held = ""
        serving = self.spec.serving
        if serving.lazy and self.tools:
            self._note_change()
            return
        if self.share == "all":
            first = [self._member("")]
        else:
            first = [self._spare() for _ in range(max(1, serving.prewarm))]
        await asyncio.gather(*(self._start(member) for member in first))
        if serving.lazy and self._state() is ServerState.READY:
            await asyncio.wait([self._end(member) for member in first if not member.num_calls])

    async def stop(self, reason: str = "", *, drain_seconds: float = 0.0) -> None:
        """End all copies. With ``drain_seconds`` calls under way have so long to end by themselves.

        A ``reason`` keeps calls from starting the server again; ``start`` lifts that.
        """
        self._held = reason
        end = _now() + drain_seconds
        while self.num_calls and _now() < end:
            await asyncio.sleep(0.02)
        for start in self._starting:
            start.cancel()
        for member in self._copies():
            self._end(member)
        if self._ending:
            await asyncio.wait(set(self._ending))
        self._spares.clear()
        for key in tuple(self._members):
            self._forget(key)
        self._note_change()

    @asynccontextmanager
    async def turn(self, tool: str, *, caller: str, deadline: float) -> AsyncIterator[None]:
        """A place among the calls under way, fairly between callers; ``Busy`` if there is none by ``deadline``."""
        queues = [queue for queue in (self._tool_queues.get(tool), self._queue) if queue is not None]
        place = places(queues, caller)
        try:
            async with asyncio.timeout_at(deadline):
                await place.__aenter__()
        except TimeoutError:
            limits = " and ".join(str(queue.limit) for queue in queues)
            raise Busy(
                self.name,
                f"a call to {tool!r} on tool server {self.name!r} waited to its deadline: "
                f"{limits} may be under way at once, and {self.num_waiting} more wait",
            ) from None
        try:
            yield
        finally:
            await place.__aexit__(None, None, None)

    @asynccontextmanager
    async def copy_for(self, *, profile: str, session: str, deadline: float, tool: str) -> AsyncIterator[Upstream]:
        """The copy that serves the caller, started if need be by ``deadline``, kept until the block ends.

        Raises ``StartFailed``, ``ServerFailed`` and ``CallTimeout``.
        """
        if self._held:
            raise ServerFailed(self.name, f"tool server {self.name!r} {self._held}")
        key: object = {"all": "", "profile": profile, "session": session}[self.share]
        alone = self.share == "session" and not session
        if alone:
            key = object()
        member = self._member(key)
        member.num_calls += 1
        try:
            await self._ready(member, deadline, tool)
            yield member.upstream
        finally:
            member.num_calls -= 1
            member.last_used = _now()
            if alone:
                self._end(member)
                self._forget(key)

    async def end_session(self, session: str) -> bool:
        """End the copy of ``session``; True if there was one."""
        if self.share != "session" or session not in self._members:
            return False
        member = self._members[session]
        self._forget(session)
        await asyncio.wait([self._end(member)])
        return True

    def reap(self) -> None:
        """End copies that nobody has called for as long as the configuration says."""
        limit = self.idle_seconds
        if limit is None:
            return
        for key, member in tuple(self._members.items()):
            if member.num_calls or _now() - member.last_used < limit:
                continue
            if self.share == "session":
                self._end(member)
                self._forget(key)
            elif member.upstream.state is ServerState.READY and not member.is_ending:
                self._end(member)

    @property
    def idle_seconds(self) -> float | None:
        """After how long without a call a copy ends; None for never."""
        seconds = self.spec.serving.idle_stop_seconds
        return SESSION_IDLE_SECONDS if seconds is None and self.share == "session" else seconds

    def _copies(self) -> list[Member]:
        return [*self._members.values(), *self._spares]

    def _state(self) -> ServerState:
        if self._held:
            return ServerState.STOPPED
        states = {member.upstream.state for member in self._copies()}
        for state in (ServerState.READY, ServerState.STARTING, ServerState.RESTARTING, ServerState.FAILED):
            if state in states:
                return state
        return ServerState.IDLE if self.tools else ServerState.STOPPED

    def _new(self) -> Member:
        member = Member(self._make(lambda: self._note(member)), _now())
        return member

    def _spare(self) -> Member:
        member = self._new()
        self._spares.append(member)
        return member

    def _member(self, key: object) -> Member:
        if key not in self._members:
            self._members[key] = self._claimed() if self.share != "all" else self._new()
        return self._members[key]

    def _claimed(self) -> Member:
        """A copy for a new key: one kept ready, in whose place another one starts, else a new one."""
        ready = next((spare for spare in self._spares if spare.upstream.state is ServerState.READY), None)
        if ready is None:
            return self._new()
        self._spares.remove(ready)
        if len(self._spares) < self.spec.serving.prewarm:
            start = asyncio.create_task(self._start(self._spare()), name=f"start of {self.name}")
            self._starting.add(start)
            start.add_done_callback(self._starting.discard)
        ready.last_used = _now()
        return ready

    async def _ready(self, member: Member, deadline: float, tool: str) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                if member.ending is not None:
                    await asyncio.wait([member.ending])
                if member.upstream.state is ServerState.STOPPED:
                    async with self._starts:
                        await member.upstream.start()
        except TimeoutError:
            raise CallTimeout(
                self.name, f"tool server {self.name!r} was not up before the deadline of a call to {tool!r}"
            ) from None

    async def _start(self, member: Member) -> None:
        """The reason of a failed start stays in the status."""
        async with self._starts:
            try:
                await member.upstream.start()
            except StartFailed:
                return

    def _end(self, member: Member) -> asyncio.Task[None]:
        """Begin to stop a copy, at once so that no call slips in between; a call that comes now starts it again."""
        if member.ending is None or member.ending.done():
            member.ending = asyncio.create_task(member.upstream.stop(), name=f"end of {self.name}")
            self._ending.add(member.ending)
            member.ending.add_done_callback(self._ending.discard)
        return member.ending

    def _forget(self, key: object) -> None:
        self._past_restarts += self._members.pop(key).upstream.total_restarts

    def _note(self, member: Member) -> None:
        if member.upstream.tools:
            self.tools = member.upstream.tools
        self._note_change()

    def _note_change(self) -> None:
        seen = (self._state(), self.tools)
        if seen != self._told:
            self._told = seen
            self._on_changed()


def _now() -> float:
    return asyncio.get_running_loop().time()
