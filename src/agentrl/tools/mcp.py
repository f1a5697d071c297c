"""``McpToolset``: the tools of supervised MCP servers, as episodes see them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from agentdock.supervisor import (
    CallOutcome,
    CallRefused,
    CallTimeout,
    RestartPolicy,
    ServerDied,
    ServerFailed,
    ServerSpec,
    ServerStatus,
    Supervisor,
)
from agentrl.errors import ConfigError, GatewayError, ToolError
from agentrl.tools.base import ToolSession
from agentrl.tools.catalogue import Catalogue, Entry
from agentrl.tools.results import tool_error, tool_result
from agentrl.types import ResultStatus, ToolCall, ToolResult, ToolSpec


class McpToolset:
    """Servers started once per process and shared by its episodes.

    ``required`` servers (None: all) must start or ``open`` raises; of the others ``status`` says why they are missing.
    ``failed`` is set once a server gave up after its restarts: the run has to end, and ``failure`` says why.
    """

    def __init__(
        self,
        specs: Sequence[ServerSpec],
        *,
        call_timeout_seconds: float = 60.0,
        result_limit_chars: int = 20_000,
        log_dir: Path | None = None,
        required: Sequence[str] | None = None,
        policy: RestartPolicy | None = None,
    ) -> None:
        names = [spec.name for spec in specs]
        unknown = [name for name in required or () if name not in names]
        if unknown:
            raise ConfigError(
                f"no tool server {', '.join(map(repr, unknown))}; there are {', '.join(map(repr, names)) or 'none'}",
                setting="--mcp_server_name",
            )
        self.specs: tuple[ToolSpec, ...] = ()
        self._required = frozenset(names if required is None else required)
        self._supervisor = Supervisor(specs, log_dir=log_dir, policy=policy)
        self._catalogue = Catalogue((), ())
        self._call_timeout_seconds = call_timeout_seconds
        self._result_limit_chars = result_limit_chars

    @property
    def failed(self) -> asyncio.Event:
        return self._supervisor.failed

    @property
    def failure(self) -> str:
        return str(self._supervisor.failure or "")

    @property
    def status(self) -> tuple[ServerStatus, ...]:
        return self._supervisor.status()

    async def open(self) -> None:
        """Start all servers and read their tools; raise ``ConfigError`` naming each required one that cannot be had."""
        try:
            reasons = await self._supervisor.start()
            missing = {name: reason for name, reason in reasons.items() if name in self._required}
            if missing:
                raise ConfigError("\n".join(missing.values()), setting="--mcp_manager_url")
        except BaseException:
            await self._supervisor.stop()
            raise
        listing = self._supervisor.tools()
        self._catalogue = Catalogue.of({name: tools for name, tools in listing.items() if name not in reasons})
        self.specs = self._catalogue.specs

    def session(
        self, record: str, *, allow: Sequence[str] | None = None, servers: Sequence[str] | None = None
    ) -> ToolSession:
        """The tools of one record; servers keep sessions apart by ``record``, which travels with each call."""
        return _McpSession(self, record, self._catalogue.select(allow, servers))

    async def close(self) -> None:
        await self._supervisor.stop()

    async def run(self, entry: Entry, call: ToolCall, record: str) -> ToolResult:
        """Run ``call`` on the tool of ``entry``."""
        began = time.perf_counter()
        try:
            outcome = await self._outcome(entry, call, record)
        except CallTimeout as error:
            raise ToolError(str(error), status=ResultStatus.TIMEOUT) from error
        except CallRefused as error:
            raise tool_error(str(error), limit_chars=self._result_limit_chars) from error
        except ServerDied as error:
            raise ToolError(
                f"{error}. Unknown outcome: the call may or may not have been carried out; it was not repeated.",
                status=ResultStatus.UNKNOWN_OUTCOME,
            ) from error
        except ServerFailed as error:
            raise GatewayError(str(error), where=f"call {call.name}") from error
        if outcome.is_error:
            raise tool_error(outcome.text, limit_chars=self._result_limit_chars)
        return tool_result(call, outcome.text, began=began, limit_chars=self._result_limit_chars)

    async def _outcome(self, entry: Entry, call: ToolCall, record: str) -> CallOutcome:
        """One attempt, and a second within the same deadline if the server died under an idempotent tool."""
        begun = time.monotonic()
        try:
            return await self._attempt(entry, call, record, self._call_timeout_seconds)
        except ServerDied:
            left = self._call_timeout_seconds - (time.monotonic() - begun)
            if not entry.spec.idempotent or left <= 0:
                raise
        return await self._attempt(entry, call, record, left)

    async def _attempt(self, entry: Entry, call: ToolCall, record: str, timeout_seconds: float) -> CallOutcome:
        return await self._supervisor.call(
            entry.server, entry.tool, call.arguments or {}, timeout_seconds=timeout_seconds, session=record
        )


class _McpSession:
    def __init__(self, toolset: McpToolset, record: str, catalogue: Catalogue) -> None:
        self.specs = catalogue.specs
        self._toolset = toolset
        self._record = record
        self._catalogue = catalogue

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._toolset.run(self._catalogue.find(call.name), call, self._record)

    async def close(self) -> None:
        """Nothing to free: servers of this kind hold no state per record."""
