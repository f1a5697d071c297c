"""Files that are kept below a size, and what tool servers write to their stderr, without secrets, in one of them."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path

from agentdock.redaction import Redactor

logger = logging.getLogger(__name__)

MAX_LINE_CHARS = 65_536
TAIL_CHARS = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """A file above ``max_bytes`` becomes FILE.1, FILE.1 becomes FILE.2 and so on; ``keep`` old ones stay."""

    max_bytes: int = 10 * 1024 * 1024
    keep: int = 3


class RotatingFile:
    """Appended to, readable by its owner alone. What cannot be written is counted in ``num_lost``, and told once."""

    def __init__(self, path: Path, rotation: Rotation) -> None:
        self.path = path
        self.num_lost = 0
        self._rotation = rotation
        self._descriptor: int | None = None
        self._size = 0

    def write(self, text: str) -> None:
        content = text.encode("utf-8", "replace")
        try:
            if self._descriptor is None:
                self._open()
            if self._size and self._size + len(content) > self._rotation.max_bytes:
                self._rotate()
            assert self._descriptor is not None
            os.write(self._descriptor, content)
            self._size += len(content)
        except OSError as error:
            self.num_lost += 1
            if self.num_lost == 1:
                logger.warning("cannot write %s: %s; what it should hold is lost", self.path, error.strerror or error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._size = os.fstat(self._descriptor).st_size

    def _rotate(self) -> None:
        self.close()
        for number in range(self._rotation.keep, 0, -1):
            older = self.path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self.path.unlink(missing_ok=True)
        self._open()

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")


class ErrorStream:
    """The stderr of one process, taken in as it comes; ``tail`` is its end. Lines go to ``file`` if there is one."""

    def __init__(self, file: RotatingFile | None, redact: Redactor) -> None:
        self._file = file
        if file is not None:
            file.write("")  # messages name the file: it is there also when the process says nothing
        self._redact = redact
        self._rest = b""
        self._tail = ""

    def feed(self, part: bytes) -> None:
        *lines, self._rest = (self._rest + part).split(b"\n")
        if lines:
            self._emit("\n".join(line.decode(errors="replace") for line in lines) + "\n")
        if len(self._rest) > MAX_LINE_CHARS:
            # The last characters stay, so that a secret is whole when it is looked for.
            text = self._redact(self._rest.decode(errors="replace"))
            keep = max(1, 4 * self._redact.longest)
            self._emit(text[:-keep])
            self._rest = text[-keep:].encode()

    def tail(self) -> str:
        """The end of all that came, an unfinished line included."""
        if self._rest:
            self._emit(self._rest.decode(errors="replace") + "\n")
            self._rest = b""
        return self._tail.strip()

    def _emit(self, text: str) -> None:
        text = self._redact(text)
        self._tail = (self._tail + text)[-TAIL_CHARS:]
        if self._file is not None:
            self._file.write(text)


def log_name(server: str) -> str:
    """File name for the stderr of ``server``; a name with a separator stays inside the folder."""
    return re.sub(r"[^\w.-]", "_", server) + ".log"


def tail_of(path: Path, max_bytes: int) -> str:
    """The last whole lines of ``path`` within ``max_bytes``; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    return text if size <= max_bytes else text.partition("\n")[2]
