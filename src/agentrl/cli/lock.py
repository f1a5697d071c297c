"""One process at a time drives a run: a lock file in its folder, freed by the system however its holder ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentrl.errors import ConfigError


@contextmanager
def held(folder: Path, name: str) -> Iterator[None]:
    """Hold ``folder/NAME.lock``; raise ``ConfigError`` that names the process which holds it already."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f"{name}.lock").open("a+")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", setting="--output_dir") from error
    with file:
        if not locked(file.fileno()):
            file.seek(0)
            raise ConfigError(
                f"{folder} is in use: process {file.read().strip() or '?'} is its {name}; wait for it, stop it, or "
                "give another --run_name",
                setting="--run_name",
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def locked(descriptor: int) -> bool:
    """Take the lock if it is free. A system without POSIX locks guards nothing."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
