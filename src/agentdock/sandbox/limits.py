"""What sandboxed code may use, and what is known of a run after it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may use.

    ``output_bytes`` holds for stdout and stderr each; ``memory_bytes`` is address space of one process;
    ``disk_bytes`` is the sum of the files in the working folder, looked at ten times a second.
    """

    wall_seconds: float = 30.0
    cpu_seconds: int = 20
    memory_bytes: int = 2 * 1024**3
    file_bytes: int = 64 * 1024**2
    disk_bytes: int = 256 * 1024**2
    processes: int = 64
    open_files: int = 256
    output_bytes: int = 256 * 1024
    network: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Containment:
    """What holds the code: the tier, and inside it whether it has a user of its own, no network and only its files."""

    tier: str
    own_user: bool
    network: str
    files: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the code printed and how it ended; ``stopped`` names the limit that ended it, if one did."""

    stdout: str
    stderr: str
    exit_code: int
    stopped: str
    truncated: bool
    seconds: float
    containment: Containment
