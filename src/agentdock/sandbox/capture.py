"""What sandboxed code prints: read as it comes, kept up to a limit, counted beyond it."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass

CHUNK_BYTES = 65_536
DRAIN_READS = 32


@dataclass(frozen=True, slots=True)
class Output:
    """``text`` ends with a note if it is not all; ``truncated`` says so too."""

    text: str
    truncated: bool


class Capture:
    """A pipe to hand to a process as its ``name`` (stdout or stderr). Needs a running event loop."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._kept = bytearray()
        self._total = 0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._read)

    def handed_over(self) -> None:
        """The process has its end now: close ours, so that the pipe ends with the process."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def fileno(self) -> int:
        return self._writer

    def take(self) -> Output:
        """All since the last ``take``, also what still lies in the pipe: call it when the writers stand still."""
        for _ in range(DRAIN_READS):
            if not self._read():
                break
        kept, total = bytes(self._kept), self._total
        self._kept.clear()
        self._total = 0
        text = kept.decode(errors="replace")
        if total == len(kept):
            return Output(text, False)
        note = f"[{self._name} truncated: the first {len(kept)} of {total} bytes are shown]"
        return Output(f"{text}\n{note}", True)

    def close(self) -> None:
        self._loop.remove_reader(self._reader)
        self.handed_over()
        os.close(self._reader)

    def _read(self) -> bool:
        """Read once; whether there was something."""
        try:
            chunk = os.read(self._reader, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._loop.remove_reader(self._reader)
            return False
        self._total += len(chunk)
        self._kept += chunk[: self._limit - len(self._kept)]
        return True
