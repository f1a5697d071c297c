"""What an episode sees of its tools: the specs it may show to the model, and one way to call them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from agentrl.types import ToolCall, ToolResult, ToolSpec


class ToolSession(Protocol):
    """The tools one episode may use. ``specs`` are exactly what is rendered and exactly what ``call`` accepts."""

    specs: tuple[ToolSpec, ...]

    async def call(self, call: ToolCall) -> ToolResult:
        """Run one well-formed call.

        Raise ``ToolError`` for what the model can repair (unknown or hidden tool, bad arguments, the tool's own
        error, a call past its deadline, a server that died in the call) and ``GatewayError`` when the way is broken.
        """
        ...

    async def close(self) -> None: ...


class Toolset(Protocol):
    """All tool servers of a process, opened once.

    ``failed`` is set once a server gave up for good: the run has to end, and ``failure`` says why.
    """

    specs: tuple[ToolSpec, ...]

    @property
    def failed(self) -> asyncio.Event: ...

    @property
    def failure(self) -> str: ...

    async def open(self) -> None:
        """Start or reach every server; raise ``ConfigError`` naming the server that cannot be had and why."""
        ...

    def session(
        self, record: str, *, allow: Sequence[str] | None = None, servers: Sequence[str] | None = None
    ) -> ToolSession:
        """Tools for one record; ``allow`` and ``servers`` (None: all) restrict what is shown and what can be called.

        Names in ``allow`` that do not exist raise ``ConfigError``.
        """
        ...

    async def close(self) -> None: ...
