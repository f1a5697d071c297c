"""The dock: every configured tool server behind one set of names, each failing alone, each call with one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentdock.arguments import fit
from agentdock.calllog import CALLS_FILE, CallLog
from agentdock.calls import (
    CallOutcome,
    CallProblem,
    InvalidArguments,
    ProgressListener,
    ServerError,
    ServerFailed,
    ToolInfo,
    UnknownProfile,
    UnknownTool,
)
from agentdock.catalogue import Catalogue, DockTool
from agentdock.config import DEFAULT_PROFILE, ConfigProblem, DockConfig, Profile, load_config
from agentdock.listings import Listings
from agentdock.logs import RotatingFile, log_name, tail_of
from agentdock.pool import Pool
from agentdock.redaction import Redactor, secrets_of
from agentdock.spec import ServerSpec
from agentdock.states import RestartPolicy, ServerState, ServerStatus
from agentdock.stats import CallStats, Metric, Sample
from agentdock.upstream import Upstream

__all__ = ["Dock", "DockTool", "ReloadOutcome"]

FIRST_BACKOFF_SECONDS = 0.02
DRAIN_SECONDS = 30.0
REAP_SECONDS = 1.0
USABLE = (ServerState.READY, ServerState.IDLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadOutcome:
    """Names of the servers that a reload touched. With a ``problem`` nothing was touched."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    problem: str = ""


class Dock:
    """Runs the servers of a configuration and calls their tools. Logs are kept under ``state_dir``."""

    def __init__(self, config: DockConfig, *, state_dir: Path) -> None:
        self.config = config
        self._state_dir = state_dir
        self._stats = CallStats()
        self._listings = Listings(state_dir)
        self._start_slots = asyncio.Semaphore(config.gateway.starts_at_once)
        self._log_files: dict[str, RotatingFile] = {}
        self._calls_file = RotatingFile(state_dir / CALLS_FILE, config.logs.rotation)
        self._call_log = self._new_call_log()
        self._pools = {spec.name: self._pool(spec) for spec in config.servers}
        self._catalogues: dict[str, Catalogue] = {}
        self._listed: dict[str, tuple[ToolInfo, ...]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._starts: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None

    async def start(self, *, settle_seconds: float = 10.0) -> None:
        """Start all servers; return once each is up or failed, or after ``settle_seconds`` while slow ones go on."""
        self._reaper = asyncio.create_task(self._reap(), name="end of idle servers")
        starts = [self._start_soon(pool) for pool in self._pools.values()]
        if starts:
            await asyncio.wait(starts, timeout=settle_seconds)

    async def close(self) -> None:
        """End all servers and their process groups; calls under way end with ``ServerDied``."""
        for task in (*self._starts, *([self._reaper] if self._reaper else [])):
            task.cancel()
        await asyncio.gather(*(pool.stop() for pool in self._pools.values()))
        for file in (*self._log_files.values(), self._calls_file):
            file.close()

    def logs(self, server: str, *, max_bytes: int = 65_536) -> str:
        """The end of what the processes of ``server`` wrote to their stderr, without secrets."""
        return tail_of(self._log_path(self._pool_of(server).name), max_bytes)

    async def stop_server(self, server: str) -> None:
        """End ``server`` and refuse calls to it until it is started again."""
        await self._pool_of(server).stop("was stopped by hand")

    async def start_server(self, server: str) -> None:
        """Start ``server``, also a lazy one that is known; a failure stays in its status."""
        await self._pool_of(server).start()

    async def restart(self, server: str) -> None:
        """End all copies of ``server``, with the calls that are under way, and start it again."""
        pool = self._pool_of(server)
        await pool.stop("is being restarted")
        await pool.start()

    async def end_session(self, session: str) -> int:
        """End the copies of servers that belong to ``session`` alone; return how many there were."""
        return sum(await asyncio.gather(*(pool.end_session(session) for pool in self._pools.values())))

    def servers(self, *, profile: str = DEFAULT_PROFILE) -> tuple[ServerStatus, ...]:
        """State of the servers that ``profile`` uses, in the order of the configuration."""
        wanted = self._profile(profile).servers
        return tuple(pool.status() for name, pool in self._pools.items() if not wanted or name in wanted)

    def tools(self, *, profile: str = DEFAULT_PROFILE) -> tuple[DockTool, ...]:
        return self._catalogue(profile).tools

    def find(self, tool_id: str, *, profile: str = DEFAULT_PROFILE) -> DockTool:
        """The tool that an id, an alias or a bare name means; ``UnknownTool`` names near ones and absent servers."""
        try:
            return self._catalogue(profile).find(tool_id)
        except UnknownTool as unknown:
            away = [status.name for status in self.servers(profile=profile) if status.state not in USABLE]
            note = f"; tools of {', '.join(away)} may be missing, because these servers are not ready" if away else ""
            raise UnknownTool(f"{unknown}{note}") from None

    async def call(
        self,
        tool_id: str,
        arguments: Mapping[str, Any],
        *,
        session: str = "",
        run: str = "",
        profile: str = DEFAULT_PROFILE,
        timeout_seconds: float | None = None,
        on_progress: ProgressListener | None = None,
    ) -> CallOutcome:
        """Call a tool once within ``timeout_seconds`` (the configured default if None, never above its maximum).

        Where a limit makes calls wait, runs take turns, or sessions without a run. The wait counts toward the deadline.
        Raises ``CallProblem``: ``UnknownTool``, ``InvalidArguments`` (not sent) or a ``ServerError``. If the caller is
        cancelled, so is the call on the server.
        """
        tool = self.find(tool_id, profile=profile)
        pool = self._pools[tool.server]
        seconds = self._timeout_seconds(timeout_seconds)
        deadline = asyncio.get_running_loop().time() + seconds
        note = partial(self._call_log.add, arguments=arguments, profile=profile, session=session, run=run)
        with self._stats.call(tool.id, note) as record:
            try:
                fitted = fit(arguments, tool.input_schema, mode=pool.spec.serving.arguments)
                if fitted.complaint:
                    raise InvalidArguments(f"the arguments of {tool.id!r} do not fit: {fitted.complaint}")
                async with (
                    pool.turn(tool.name, caller=run or session, deadline=deadline),
                    pool.copy_for(profile=profile, session=session, deadline=deadline, tool=tool.name) as upstream,
                ):
                    record.queued_seconds = seconds - (deadline - asyncio.get_running_loop().time())
                    outcome = await upstream.call(
                        tool.name,
                        fitted.arguments,
                        timeout_seconds=seconds,
                        deadline=deadline,
                        session=session,
                        on_progress=on_progress,
                    )
            except CallProblem as problem:
                record.outcome = problem.code
                # What the model wrote is told by the arguments of the record, in outline or whole as configured.
                record.error = str(problem) if isinstance(problem, ServerError) else ""
                raise
            record.outcome = "tool_error" if outcome.is_error else "ok"
        return replace(outcome, notes=fitted.notes) if fitted.notes else outcome

    def unready(self) -> tuple[str, ...]:
        """Why the dock is not wholly usable: one reason for each server that is not up; empty if all are."""
        return tuple(
            f"{status.name}: {status.state}" + (f": {status.reason}" if status.reason else "")
            for status in self.servers()
            if status.state not in USABLE
        )

    async def reload(self) -> ReloadOutcome:
        """Read the configuration file again and start, end or restart only what changed in it.

        Calls that are under way on servers that end have a while to end by themselves.
        """
        try:
            config = load_config(self.config.path)
        except ConfigProblem as problem:
            return ReloadOutcome(problem=str(problem))
        wanted = {spec.name: spec for spec in config.servers}
        running = {name: pool.spec for name, pool in self._pools.items()}
        outcome = ReloadOutcome(
            added=tuple(name for name in wanted if name not in running),
            removed=tuple(name for name in running if name not in wanted),
            changed=tuple(name for name, spec in wanted.items() if name in running and spec != running[name]),
        )
        ended = [self._pools[name] for name in (*outcome.removed, *outcome.changed)]
        fresh = {name: self._pool(wanted[name]) for name in (*outcome.added, *outcome.changed)}
        self._pools = {name: fresh.get(name) or self._pools[name] for name in wanted}
        where = self.config.gateway
        self.config = replace(config, gateway=replace(config.gateway, host=where.host, port=where.port))
        self._call_log = self._new_call_log()
        self._note_change()
        starts = [self._start_soon(pool) for pool in fresh.values()]
        await asyncio.gather(*(pool.stop("is no longer configured", drain_seconds=DRAIN_SECONDS) for pool in ended))
        if starts:
            await asyncio.wait(starts)
        return outcome

    def on_tools_changed(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` whenever the tools of any profile changed; return a function that ends this."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def metrics(self) -> tuple[Metric, ...]:
        statuses = self.servers()
        restarts = tuple(
            Sample(labels={"server": name}, value=pool.total_restarts) for name, pool in self._pools.items()
        )
        up = tuple(Sample(labels={"server": s.name}, value=s.state in USABLE) for s in statuses)
        waiting = tuple(Sample(labels={"server": s.name}, value=s.num_waiting) for s in statuses)
        return (
            *self._stats.metrics(),
            Metric(name="agentdock_calls_waiting", kind="gauge", help="Calls that wait for a place.", samples=waiting),
            Metric(
                name="agentdock_server_restarts_total", kind="counter", help="Restarts of servers.", samples=restarts
            ),
            Metric(name="agentdock_server_up", kind="gauge", help="1 if the server can be called.", samples=up),
        )

    def _new_call_log(self) -> CallLog:
        redact = Redactor(secrets_of(self.config.servers))
        return CallLog(self._calls_file, content=self.config.logs.calls, redact=redact)

    def _log_path(self, server: str) -> Path:
        return self._state_dir / "logs" / log_name(server)

    def _pool(self, spec: ServerSpec) -> Pool:
        if spec.name not in self._log_files:
            self._log_files[spec.name] = RotatingFile(self._log_path(spec.name), self.config.logs.rotation)
        log = self._log_files[spec.name]
        policy = RestartPolicy(
            max_restarts=spec.serving.max_restarts,
            first_backoff_seconds=FIRST_BACKOFF_SECONDS,
            first_probe_seconds=min(1.0, spec.serving.probe_seconds),
            max_probe_seconds=spec.serving.probe_seconds,
        )
        return Pool(
            spec,
            make=lambda on_changed: Upstream(spec, log=log, policy=policy, on_changed=on_changed),
            starts=self._start_slots,
            tools=self._listings.find(spec) if spec.serving.lazy else (),
            on_changed=self._note_change,
        )

    def _pool_of(self, server: str) -> Pool:
        if server not in self._pools:
            raise ServerFailed(server, f"there is no server {server!r}; there are {', '.join(self._pools)}")
        return self._pools[server]

    def _start_soon(self, pool: Pool) -> asyncio.Task[None]:
        start = asyncio.create_task(pool.start(), name=f"start of {pool.name}")
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        return start

    async def _reap(self) -> None:
        while True:
            limits = [pool.idle_seconds for pool in self._pools.values() if pool.idle_seconds is not None]
            await asyncio.sleep(min([REAP_SECONDS, *(limit / 4 for limit in limits)]))
            for pool in self._pools.values():
                pool.reap()

    def _timeout_seconds(self, wanted: float | None) -> float:
        gateway = self.config.gateway
        return min(wanted or gateway.call_timeout_seconds, gateway.max_call_timeout_seconds)

    def _profile(self, name: str) -> Profile:
        if name not in self.config.profiles:
            raise UnknownProfile(f"there is no profile {name!r}; there are {', '.join(self.config.profiles)}")
        return self.config.profiles[name]

    def _catalogue(self, profile: str) -> Catalogue:
        chosen = self._profile(profile)
        if profile not in self._catalogues:
            self._catalogues[profile] = Catalogue(
                chosen,
                {name: pool.tools for name, pool in self._pools.items()},
                server_aliases={name: pool.spec.serving.aliases for name, pool in self._pools.items()},
                tool_aliases=self.config.aliases,
            )
        return self._catalogues[profile]

    def _note_change(self) -> None:
        """A server's state or list changed: read the catalogues anew and tell listeners if the tools differ."""
        self._catalogues.clear()
        listed = {name: pool.tools for name, pool in self._pools.items()}
        if listed != self._listed:
            self._listed = listed
            for pool in self._pools.values():
                if pool.spec.serving.lazy:
                    self._listings.keep(pool.spec, pool.tools)
            for listener in tuple(self._listeners):
                listener()
