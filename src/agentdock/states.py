"""How a tool server stands, and how often it is started again."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ServerState(StrEnum):
    """``IDLE``: not running, and started by the next call. ``FAILED``: calls are refused with the reason."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    IDLE = "idle"
    RESTARTING = "restarting"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """Back-off doubles from ``first`` to ``max``. A call that is answered, or ``stable_seconds`` up, clears it.

    After ``max_restarts`` the server has failed. It is tried again after ``first_probe_seconds``, then after twice
    that and so on up to ``max_probe_seconds``; never if that is None.
    """

    max_restarts: int = 3
    first_backoff_seconds: float = 0.1
    max_backoff_seconds: float = 5.0
    stable_seconds: float = 60.0
    first_probe_seconds: float = 1.0
    max_probe_seconds: float | None = None

    def backoff_seconds(self, restarts: int) -> float:
        return min(self.first_backoff_seconds * 2 ** (restarts - 1), self.max_backoff_seconds)

    def probe_seconds(self, num_probes: int) -> float | None:
        if self.max_probe_seconds is None:
            return None
        return min(self.first_probe_seconds * 2 ** min(num_probes, 30), self.max_probe_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    """``reason`` says why a server is not ready, or why it last ended; ``missing`` which variables it needs.

    ``share`` says who shares a copy of it; ``num_copies`` run, and ``pid`` is one of theirs. ``restarts`` are those
    since a call was last answered, ``total_restarts`` all of them.
    ``num_waiting`` calls wait for a place.
    """

    name: str
    state: ServerState
    restarts: int
    reason: str
    pid: int | None
    num_tools: int
    missing: tuple[str, ...] = ()
    kind: str = "stdio"
    share: str = "all"
    num_copies: int = 0
    total_restarts: int = 0
    num_waiting: int = 0
