"""Tool servers that died and were started again: events that whoever watches the run is told of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from agentdock.supervisor import ServerStatus
from agentrl.telemetry import Telemetry

LOOK_SECONDS = 0.5
TOOL_RESTART = "tool_restart"
"""Kind of the event: server, restarts (of all its life), reason."""


class Supervised(Protocol):
    @property
    def status(self) -> Sequence[ServerStatus]: ...


@asynccontextmanager
async def restarts_told(toolset: Supervised, telemetry: Telemetry) -> AsyncIterator[None]:
    """Look at the servers while the block runs, and once more at its end."""
    told: dict[str, int] = {}

    def look() -> None:
        for server in toolset.status:
            if server.total_restarts > told.get(server.name, 0):
                told[server.name] = server.total_restarts
                telemetry.event(TOOL_RESTART, server=server.name, restarts=server.total_restarts, reason=server.reason)

    async def watch() -> None:
        while True:
            look()
            await asyncio.sleep(LOOK_SECONDS)

    watching = asyncio.create_task(watch(), name="tool restarts")
    try:
        yield
    finally:
        watching.cancel()
        look()


def as_sentence(event: Mapping[str, Any]) -> str:
    """The reason names the server; what its stderr ends with is in its log."""
    reason = str(event["reason"]).splitlines()[0].removesuffix("; its stderr ends with:")
    return f"{reason}; it was started again (restart {event['restarts']}), see logs/{event['server']}.log"
