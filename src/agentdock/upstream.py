"""One tool server kept alive: an owner task holds its connection, restarts it, and gives up after repeated failure.

The SDK is imported inside functions: it takes half a second that only a process with tool servers should pay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from agentdock.calls import (
    CallOutcome,
    CallRefused,
    CallTimeout,
    ProgressListener,
    ServerDied,
    ServerFailed,
    StartFailed,
    ToolInfo,
)
from agentdock.connect import open_wire, why_unreachable
from agentdock.link import GreetingFailed, Link, NotSent, greet
from agentdock.logs import ErrorStream, RotatingFile
from agentdock.redaction import Redactor, secrets_of, without_secrets
from agentdock.spec import MissingVariable, ServerSpec
from agentdock.states import RestartPolicy, ServerState
from agentdock.wire import Wire

logger = logging.getLogger(__name__)


class Upstream:
    """A supervised server. Callers live in other tasks and never touch the connection's life."""

    def __init__(
        self,
        spec: ServerSpec,
        *,
        log: RotatingFile | None = None,
        policy: RestartPolicy | None = None,
        on_failed: Callable[[ServerFailed], None] = lambda failure: None,
        on_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """``log`` takes the stderr of a process. ``on_changed`` is called after each change of state or tools."""
        self.spec = spec
        self.state = ServerState.STOPPED
        self.reason = ""
        self.tools: tuple[ToolInfo, ...] = ()
        self.restarts = 0
        self.total_restarts = 0
        self._log = log
        self._redact = Redactor()
        self._policy = policy or RestartPolicy()
        self._on_failed = on_failed
        self._on_changed = on_changed
        self._link: Link | None = None
        self._greeting: Wire | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._changed = asyncio.Event()
        self._retry_at = 0.0
        self._checks: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def pid(self) -> int | None:
        return self._link.wire.pid if self._link else None

    async def start(self) -> None:
        """Start the server and read its tools; raise ``StartFailed`` with the reason and the end of its stderr."""
        if self._owner is None:
            self._stopping.clear()
            self._set_state(ServerState.STARTING)
            self._owner = asyncio.create_task(self._own(), name=f"tool server {self.name}")
            self._owner.add_done_callback(self._note_owner_end)
        while self.state is ServerState.STARTING:
            await self._changed.wait()
        if self.state is not ServerState.READY:
            raise StartFailed(self.name, self.reason or f"tool server {self.name!r} was stopped while it started")

    async def stop(self) -> None:
        """End the server and its process group; calls under way end with ``ServerDied``."""
        self._stopping.set()
        for check in self._checks:
            check.cancel()
        if self._greeting is not None:
            self._greeting.kill("was stopped while it started")
        if self._owner is not None:
            await self._owner
            self._owner = None
        if self.state is not ServerState.FAILED:
            self._set_state(ServerState.STOPPED)

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_seconds: float,
        deadline: float | None = None,
        session: str = "",
        on_progress: ProgressListener | None = None,
    ) -> CallOutcome:
        """Call ``tool`` once; waiting for a restart counts against the deadline, by default in ``timeout_seconds``.

        Raises ``CallTimeout``, ``CallRefused``, ``ServerDied`` (outcome unknown) or ``ServerFailed``.
        """
        if deadline is None:
            deadline = asyncio.get_running_loop().time() + timeout_seconds
        while True:
            link = await self._link_by(deadline, tool, timeout_seconds)
            try:
                return await self._call_on(
                    link,
                    tool,
                    arguments,
                    timeout_seconds=deadline - asyncio.get_running_loop().time(),
                    limit_seconds=timeout_seconds,
                    session=session,
                    on_progress=on_progress,
                )
            except NotSent as lost:
                link.wire.kill(str(lost))

    async def _call_on(self, link: Link, tool: str, arguments: Mapping[str, Any], **options: Any) -> CallOutcome:
        try:
            outcome = await link.call(tool, arguments, **options)
        except CallTimeout:
            self._check_soon(link)
            raise
        except ServerDied:
            link.suspect = True
            self._check_soon(link)
            raise
        except CallRefused:
            self.restarts = 0
            raise
        self.restarts = 0
        return without_secrets(outcome, self._redact) if outcome.is_error else outcome

    async def _link_by(self, deadline: float, tool: str, limit_seconds: float) -> Link:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._ready_link()
        except TimeoutError:
            raise CallTimeout(
                self.name,
                f"tool server {self.name!r} was not back within the {limit_seconds:g} s of a call to {tool!r}",
            ) from None

    async def _ready_link(self) -> Link:
        while True:
            if self.state is ServerState.FAILED:
                raise ServerFailed(self.name, self.reason + self._outlook())
            if self.state is ServerState.STOPPED:
                raise ServerFailed(self.name, f"tool server {self.name!r} is not running")
            if self._link is not None and not self._link.suspect and not self._link.wire.ended.done():
                return self._link
            await self._changed.wait()

    def _outlook(self) -> str:
        """When a failed server is tried again, for those who are refused meanwhile."""
        if self._owner is None or self._owner.done():
            return ""
        seconds = max(0.0, self._retry_at - asyncio.get_running_loop().time())
        return f" (the next attempt to start it is in {seconds:.0f} s)"

    def _set_state(self, state: ServerState) -> None:
        self.state = state
        self._wake()
        self._on_changed()

    def _wake(self) -> None:
        """Let all who wait for a usable connection look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _own(self) -> None:
        """Hold one connection after the other until stopped, with longer and longer pauses while it keeps failing."""
        started = False
        num_probes = 0
        while not self._stopping.is_set():
            reason = await self._hold()
            if self._stopping.is_set():
                return
            started = started or self.state is ServerState.READY
            self.reason = reason
            if started and self.restarts < self._policy.max_restarts:
                num_probes = 0
                self._note_restart(reason)
                await self._pause(self._policy.backoff_seconds(self.restarts))
                continue
            self._give_up(reason, started)
            pause = self._policy.probe_seconds(num_probes)
            if pause is None or self.spec.missing():
                return
            num_probes += 1
            self._retry_at = asyncio.get_running_loop().time() + pause
            await self._pause(pause)

    def _note_restart(self, reason: str) -> None:
        self.restarts += 1
        self.total_restarts += 1
        logger.warning("%s; restart %d of %d", reason, self.restarts, self._policy.max_restarts)
        self._set_state(ServerState.RESTARTING)

    def _note_owner_end(self, owner: asyncio.Task[None]) -> None:
        """A cancelled or broken owner must not leave callers waiting."""
        if owner.cancelled():
            self._set_state(ServerState.STOPPED)
        elif owner.exception() is not None:
            self._give_up(f"supervision of tool server {self.name!r} broke: {owner.exception()!r}", started=True)

    def _give_up(self, reason: str, started: bool) -> None:
        """From now on calls are refused with the reason, until a later attempt brings the server up."""
        if started:
            count = f"{self.restarts} restarts without answering a call in between"
            self.reason = f"tool server {self.name!r} failed {count}. {reason}"
        self._set_state(ServerState.FAILED)
        if started:
            self._on_failed(ServerFailed(self.name, self.reason))

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    async def _hold(self) -> str:
        """Run the server once from start to end; return how it ended, with the end of its stderr."""
        try:
            spec = self.spec.resolved()
        except MissingVariable as error:
            return str(error)
        self._redact = Redactor(secrets_of([self.spec]))
        errors = ErrorStream(self._log, self._redact)
        try:
            ended = await self._hold_wire(spec, errors)
        except OSError as error:
            ended = f"could not be started: {error.strerror or error}: {error.filename or spec.command}"
        except Exception as error:  # boundary: whatever tasks of the SDK raise ends this connection only
            if spec.remote is None:
                raise
            ended = why_unreachable(error)
        tail = errors.tail()
        return self._redact(f"tool server {self.name!r} {ended}" + (f"; its stderr ends with:\n{tail}" if tail else ""))

    async def _hold_wire(self, spec: ServerSpec, errors: ErrorStream) -> str:
        from mcp.client.session import ClientSession

        limit = spec.start_timeout_seconds
        async with open_wire(spec, errors.feed) as wire, ClientSession(wire.incoming, wire.outgoing) as session:
            self._greeting = wire
            try:
                self.tools = await greet(session, wire, spec.idempotent_tools, timeout_seconds=limit)
            except TimeoutError:
                return f"did not answer within {limit:g} s of its start"
            except GreetingFailed as failed:
                return wire.ended.result() if wire.ended.done() else str(failed)
            finally:
                self._greeting = None
            link = Link(self.name, session, wire, asyncio.get_running_loop().time(), self._redact)
            await self._serve(link)
            if spec.remote is not None and not self._stopping.is_set():
                await link.settle()
            return wire.ended.result() if wire.ended.done() else "was stopped"

    async def _serve(self, link: Link) -> None:
        self._link = link
        self._set_state(ServerState.READY)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({link.wire.ended, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            self._link = None
        if asyncio.get_running_loop().time() - link.since >= self._policy.stable_seconds:
            self.restarts = 0

    def _check_soon(self, link: Link) -> None:
        """After a timeout ask for a sign of life, so that a hung server is restarted and a slow tool is not."""
        if not link.checking and not link.wire.ended.done():
            link.checking = True
            check = asyncio.create_task(self._check(link))
            self._checks.add(check)
            check.add_done_callback(self._checks.discard)

    async def _check(self, link: Link) -> None:
        trouble = await link.trouble(self.spec.start_timeout_seconds)
        link.checking = False
        if trouble and not link.wire.ended.done():
            link.wire.kill(trouble)
        elif not trouble and link.suspect:
            link.suspect = False
            self._wake()
