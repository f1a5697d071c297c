"""Follows the configuration file of a dock: an edit takes effect without a restart, a mistake changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from agentdock.dock import Dock, ReloadOutcome

LOOK_SECONDS = 0.5


async def follow(dock: Dock, tell: Callable[[str], None]) -> None:
    """Reload whenever the file has changed and rests; ``tell`` what came of it. Returns at once without a file."""
    path = dock.config.path
    if path is None:
        return
    used = _stamp(path)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        seen = _stamp(path)
        # A file that is away or still being written is looked at again later.
        if seen is None or seen == used:
            continue
        await asyncio.sleep(LOOK_SECONDS / 5)
        if _stamp(path) != seen:
            continue
        used = seen
        tell(told(path, await dock.reload()))


def told(path: Path, outcome: ReloadOutcome) -> str:
    if outcome.problem:
        return f"{path} has mistakes and is not used; what ran before goes on:\n{outcome.problem}"
    parts = (("added", outcome.added), ("removed", outcome.removed), ("changed", outcome.changed))
    servers = "; ".join(f"{what} {', '.join(names)}" for what, names in parts if names)
    return f"{path} was read again: {servers or 'the same servers'}"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
