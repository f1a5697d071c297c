"""The dock: every configured tool server behind one set of names, each failing alone, each call with one deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentdock.arguments import fit
from agentdock.calls import (
    CallOutcome,
    CallProblem,
    InvalidArguments,
    ProgressListener,
    StartFailed,
    ToolInfo,
    UnknownProfile,
    UnknownTool,
)
from agentdock.catalogue import Catalogue, DockTool
from agentdock.config import DEFAULT_PROFILE, ConfigProblem, DockConfig, Profile, load_config
from agentdock.spec import ServerSpec
from agentdock.stats import CallStats, Metric, Sample
from agentdock.supervisor import RestartPolicy, ServerState, ServerStatus, log_name
from agentdock.upstream import Upstream

__all__ = ["Dock", "DockTool", "ReloadOutcome"]

DOCK_POLICY = RestartPolicy(first_backoff_seconds=0.02)
PREWARM_AT_ONCE = 4


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
        self._upstreams = {spec.name: self._upstream(spec) for spec in config.servers}
        self._catalogues: dict[str, Catalogue] = {}
        self._listed: dict[str, tuple[ToolInfo, ...]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._starts: set[asyncio.Task[None]] = set()
        self._start_slots = asyncio.Semaphore(PREWARM_AT_ONCE)

    async def start(self, *, settle_seconds: float = 10.0) -> None:
        """Start all servers; return once each is up or failed, or after ``settle_seconds`` while slow ones go on."""
        starts = [self._start_soon(upstream) for upstream in self._upstreams.values()]
        if starts:
            await asyncio.wait(starts, timeout=settle_seconds)

    async def close(self) -> None:
        """End all servers and their process groups; calls under way end with ``ServerDied``."""
        for start in self._starts:
            start.cancel()
        await asyncio.gather(*(upstream.stop() for upstream in self._upstreams.values()))

    def servers(self, *, profile: str = DEFAULT_PROFILE) -> tuple[ServerStatus, ...]:
        """State of the servers that ``profile`` uses, in the order of the configuration."""
        wanted = self._profile(profile).servers
        return tuple(
            ServerStatus(
                name=name,
                state=upstream.state,
                restarts=upstream.restarts,
                reason=upstream.reason,
                pid=upstream.pid,
                num_tools=len(upstream.tools),
                kind=upstream.spec.kind,
                missing=upstream.spec.missing(),
            )
            for name, upstream in self._upstreams.items()
            if not wanted or name in wanted
        )

    def tools(self, *, profile: str = DEFAULT_PROFILE) -> tuple[DockTool, ...]:
        return self._catalogue(profile).tools

    def find(self, tool_id: str, *, profile: str = DEFAULT_PROFILE) -> DockTool:
        """The tool that an id, an alias or a bare name means; ``UnknownTool`` names near ones and absent servers."""
        try:
            return self._catalogue(profile).find(tool_id)
        except UnknownTool as unknown:
            away = [status.name for status in self.servers(profile=profile) if status.state is not ServerState.READY]
            note = f"; tools of {', '.join(away)} may be missing, because these servers are not ready" if away else ""
            raise UnknownTool(f"{unknown}{note}") from None

    async def call(
        self,
        tool_id: str,
        arguments: Mapping[str, Any],
        *,
        session: str = "",
        profile: str = DEFAULT_PROFILE,
        timeout_seconds: float | None = None,
        on_progress: ProgressListener | None = None,
    ) -> CallOutcome:
        """Call a tool once within ``timeout_seconds`` (the configured default if None, never above its maximum).

        Raises ``CallProblem``: ``UnknownTool``, ``InvalidArguments`` (not sent) or a ``ServerError``. If the caller is
        cancelled, so is the call on the server.
        """
        tool = self.find(tool_id, profile=profile)
        upstream = self._upstreams[tool.server]
        with self._stats.call(tool.id) as record:
            try:
                fitted = fit(arguments, tool.input_schema, mode=upstream.spec.serving.arguments)
                if fitted.complaint:
                    raise InvalidArguments(f"the arguments of {tool.id!r} do not fit: {fitted.complaint}")
                outcome = await upstream.call(
                    tool.name,
                    fitted.arguments,
                    timeout_seconds=self._timeout_seconds(timeout_seconds),
                    session=session,
                    on_progress=on_progress,
                )
            except CallProblem as problem:
                record.outcome = problem.code
                raise
            record.outcome = "tool_error" if outcome.is_error else "ok"
        return replace(outcome, notes=fitted.notes) if fitted.notes else outcome

    def unready(self) -> tuple[str, ...]:
        """Why the dock is not wholly usable: one reason for each server that is not up; empty if all are."""
        return tuple(
            f"{status.name}: {status.state}" + (f": {status.reason}" if status.reason else "")
            for status in self.servers()
            if status.state is not ServerState.READY
        )

    async def reload(self) -> ReloadOutcome:
        """Read the configuration file again and start, end or restart only what changed in it."""
        try:
            config = load_config(self.config.path)
        except ConfigProblem as problem:
            return ReloadOutcome(problem=str(problem))
        wanted = {spec.name: spec for spec in config.servers}
        running = {name: upstream.spec for name, upstream in self._upstreams.items()}
        outcome = ReloadOutcome(
            added=tuple(name for name in wanted if name not in running),
            removed=tuple(name for name in running if name not in wanted),
            changed=tuple(name for name, spec in wanted.items() if name in running and spec != running[name]),
        )
        ended = [self._upstreams[name] for name in (*outcome.removed, *outcome.changed)]
        fresh = {name: self._upstream(wanted[name]) for name in (*outcome.added, *outcome.changed)}
        self._upstreams = {name: fresh.get(name) or self._upstreams[name] for name in wanted}
        self.config = config
        self._note_change()
        await asyncio.gather(*(upstream.stop() for upstream in ended))
        starts = [self._start_soon(upstream) for upstream in fresh.values()]
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
            Sample(labels={"server": s.name}, value=self._upstreams[s.name].total_restarts) for s in statuses
        )
        up = tuple(Sample(labels={"server": s.name}, value=s.state is ServerState.READY) for s in statuses)
        return (
            *self._stats.metrics(),
            Metric(
                name="agentdock_server_restarts_total", kind="counter", help="Restarts of servers.", samples=restarts
            ),
            Metric(name="agentdock_server_up", kind="gauge", help="1 if the server is ready.", samples=up),
        )

    def _upstream(self, spec: ServerSpec) -> Upstream:
        log_path = self._state_dir / "logs" / log_name(spec.name)
        return Upstream(spec, log_path=log_path, policy=DOCK_POLICY, on_changed=self._note_change)

    def _start_soon(self, upstream: Upstream) -> asyncio.Task[None]:
        start = asyncio.create_task(self._start(upstream), name=f"start of {upstream.name}")
        self._starts.add(start)
        start.add_done_callback(self._starts.discard)
        return start

    async def _start(self, upstream: Upstream) -> None:
        """The reason of a failed start stays in the server's status."""
        async with self._start_slots:
            try:
                await upstream.start()
            except StartFailed:
                return

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
                {name: upstream.tools for name, upstream in self._upstreams.items()},
                server_aliases={name: upstream.spec.serving.aliases for name, upstream in self._upstreams.items()},
                tool_aliases=self.config.aliases,
            )
        return self._catalogues[profile]

    def _note_change(self) -> None:
        """A server's state or list changed: read the catalogues anew and tell listeners if the tools differ."""
        self._catalogues.clear()
        listed = {name: upstream.tools for name, upstream in self._upstreams.items()}
        if listed != self._listed:
            self._listed = listed
            for listener in tuple(self._listeners):
                listener()
