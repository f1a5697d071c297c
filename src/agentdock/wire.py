"""What carries the messages of one connection to a tool server, whichever way it goes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

FATE_KEY = "agentdock/fate"


class Fate(StrEnum):
    """What became of a request that got no answer of the server's own; found under ``FATE_KEY`` of the error's data."""

    NOT_SENT = "not_sent"
    SESSION_LOST = "session_lost"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(slots=True, kw_only=True)
class Wire:
    """The two streams a client session speaks through, and ``ended``: why the connection is gone, once it is.

    ``kill(reason)`` ends it at once, for that reason. ``pid`` is None where the server is no process of ours.
    """

    incoming: Any
    outgoing: Any
    ended: asyncio.Future[str]
    kill: Callable[[str], None]
    pid: int | None = None
