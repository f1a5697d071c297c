"""A set of supervised tool servers: started together, each failing alone, and one place that says which gave up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from agentdock.calls import (
    CallOutcome,
    CallRefused,
    CallTimeout,
    ServerDied,
    ServerError,
    ServerFailed,
    StartFailed,
    ToolInfo,
)
from agentdock.logs import RotatingFile, Rotation, log_name
from agentdock.spec import BUILTIN, MissingVariable, ServerSpec, builtin_server
from agentdock.states import RestartPolicy, ServerState, ServerStatus
from agentdock.upstream import Upstream

__all__ = [
    "BUILTIN",
    "CallOutcome",
    "CallRefused",
    "CallTimeout",
    "MissingVariable",
    "RestartPolicy",
    "ServerDied",
    "ServerError",
    "ServerFailed",
    "ServerSpec",
    "ServerState",
    "ServerStatus",
    "StartFailed",
    "Supervisor",
    "ToolInfo",
    "Upstream",
    "builtin_server",
]


class Supervisor:
    """Runs servers and calls their tools. ``failed`` is set, and ``failure`` says why, once a server gave up.

    With ``log_dir`` the stderr of server NAME is appended to ``log_dir/NAME.log``.
    """

    def __init__(
        self, specs: Sequence[ServerSpec], *, log_dir: Path | None = None, policy: RestartPolicy | None = None
    ) -> None:
        names = [spec.name for spec in specs]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two tool servers are named {', '.join(twice)}; names must differ")
        self.failed = asyncio.Event()
        self.failure: ServerFailed | None = None
        self._upstreams = {
            spec.name: Upstream(
                spec,
                log=RotatingFile(log_dir / log_name(spec.name), Rotation()) if log_dir else None,
                policy=policy,
                on_failed=self._note_failure,
            )
            for spec in specs
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    async def start(self) -> dict[str, str]:
        """Start every server at once; return the reason for each one that cannot be had. The others stay up."""
        upstreams = self._upstreams.values()
        outcomes = await asyncio.gather(*(upstream.start() for upstream in upstreams), return_exceptions=True)
        reasons: dict[str, str] = {}
        for upstream, outcome in zip(upstreams, outcomes, strict=True):
            if isinstance(outcome, StartFailed):
                reasons[upstream.name] = str(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
        return reasons

    async def stop(self) -> None:
        """End all servers and their process groups."""
        await asyncio.gather(*(upstream.stop() for upstream in self._upstreams.values()))

    async def call(
        self, server: str, tool: str, arguments: Mapping[str, Any], *, timeout_seconds: float, session: str = ""
    ) -> CallOutcome:
        """Call one tool once; see ``Upstream.call`` for what it raises."""
        return await self._upstreams[server].call(tool, arguments, timeout_seconds=timeout_seconds, session=session)

    def tools(self) -> dict[str, tuple[ToolInfo, ...]]:
        """Server name -> its tools, in the order of the specs; a server that never started has none."""
        return {name: upstream.tools for name, upstream in self._upstreams.items()}

    def status(self) -> tuple[ServerStatus, ...]:
        return tuple(
            ServerStatus(
                name=name,
                state=upstream.state,
                restarts=upstream.restarts,
                total_restarts=upstream.total_restarts,
                reason=upstream.reason,
                pid=upstream.pid,
                num_tools=len(upstream.tools),
                kind=upstream.spec.kind,
            )
            for name, upstream in self._upstreams.items()
        )

    def _note_failure(self, failure: ServerFailed) -> None:
        self.failure = self.failure or failure
        self.failed.set()
