"""What sandboxed code may use, and what is known of a run after it."""

from __future__ import annotations

from dataclasses import dataclass

from agentdock.sandbox.workspace import FoundFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one call may use.

    ``output_bytes`` holds for stdout and stderr each; ``memory_bytes`` for the address space of each process, and for
    what all together really use; ``disk_bytes`` for the sum of the files in the working folder. Sums are looked at ten
    times a second. ``cpu_seconds`` holds for each process.
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
    """What holds the code: the tier, and whether in it the code has a user of its own and a network.

    ``network`` is off, open or allowed; ``readable`` is ``own`` files or, where nothing keeps it from others, ``all``.
    """

    tier: str
    own_user: bool
    network: str
    readable: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What the code printed, the files that it made or changed, and how it ended.

    ``stopped`` names the limit that ended it, if one did.
    """

    stdout: str
    stderr: str
    exit_code: int
    stopped: str
    truncated: bool
    seconds: float
    files: tuple[FoundFile, ...]
    containment: Containment
