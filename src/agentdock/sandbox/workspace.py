"""The folder of sandboxed code: what is put into it and taken out of it never follows a link that the code made."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

PROGRAM = "main.py"
MAX_FILES = 20_000
MAX_DEPTH = 64
MAX_LISTED = 100
MAX_FILE_BYTES = 4 * 1024**2
MAX_TOTAL_BYTES = 8 * 1024**2
REMOVE_SECONDS = 60
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Shot = Mapping[str, tuple[int, int, int]]
"""Name of each regular file -> inode, size, time of the last change in ns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A file that the code made or changed. ``body`` is None where it is too large to be carried."""

    name: str
    num_bytes: int
    body: bytes | None = field(repr=False)


class _Uncounted(Exception):
    """There is more in the folder than is worth counting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    name: str
    leaf: str
    folder: int
    status: os.stat_result


class Workspace:
    """A fresh folder, owned by ``uid`` if there is one."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self.path = Path(tempfile.mkdtemp(prefix="agentdock-"))
        self._own(self.path)

    def put(self, name: str, body: bytes) -> None:
        """Write a file at the top, in place of what the code may have put there under that name.

        Raises ``IsADirectoryError`` where that is a folder.
        """
        if name in ("", ".", "..") or {"/", "\0"} & set(name):
            raise ValueError(f"{name!r} is no plain file name")
        target = self.path / name
        target.unlink(missing_ok=True)
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(body)
            self._own(descriptor)

    def shot(self) -> Shot:
        """What lies here now, to be compared later."""
        return {entry.name: _identity(entry.status) for entry in self._files()}

    def changed(self, before: Shot) -> tuple[FoundFile, ...]:
        """Files that are new or different since ``before``, by name; the program itself is left out."""
        found: list[FoundFile] = []
        left = MAX_TOTAL_BYTES
        for entry in self._files():
            if entry.name == PROGRAM or before.get(entry.name) == _identity(entry.status):
                continue
            size = entry.status.st_size
            body = _read(entry) if size <= min(left, MAX_FILE_BYTES) else None
            left -= len(body or b"")
            found.append(FoundFile(name=entry.name, num_bytes=size, body=body))
        return tuple(sorted(found, key=lambda file: file.name))

    def num_bytes(self) -> float:
        """How much disk the files take; infinite where they are too many or lie too deep to be counted."""
        try:
            return sum(entry.status.st_blocks * 512 for entry in self._entries())
        except _Uncounted:
            return float("inf")

    def remove(self) -> None:
        """Remove everything, also folders nested deeper than a path can name."""
        with suppress(RecursionError):
            shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():
            subprocess.run(["rm", "-rf", "--", str(self.path)], timeout=REMOVE_SECONDS, check=False)

    def _own(self, place: Path | int) -> None:
        if self.uid is not None:
            os.chown(place, self.uid, self.uid)

    def _files(self) -> Iterator[_Entry]:
        """Regular files, as far as they are counted."""
        with suppress(_Uncounted):
            yield from (entry for entry in self._entries() if stat.S_ISREG(entry.status.st_mode))

    def _entries(self) -> Iterator[_Entry]:
        """Everything but folders; raise ``_Uncounted`` beyond ``MAX_FILES`` names and ``MAX_DEPTH`` levels."""
        names = iter(range(MAX_FILES))
        return _below(os.open(self.path, FOLDER), "", 0, names)


def _below(folder: int, above: str, depth: int, names: Iterator[int]) -> Iterator[_Entry]:
    """Walk by descriptors, so that a folder that becomes a link or a pipe meanwhile is not entered."""
    try:
        with os.scandir(folder) as listed:
            for item in listed:
                if depth > MAX_DEPTH or next(names, None) is None:
                    raise _Uncounted
                name = os.path.join(above, item.name)
                try:
                    status = os.lstat(item.name, dir_fd=folder)
                    inner = os.open(item.name, FOLDER, dir_fd=folder) if stat.S_ISDIR(status.st_mode) else -1
                except OSError:
                    continue
                if inner >= 0:
                    yield from _below(inner, name, depth + 1, names)
                else:
                    yield _Entry(name=name, leaf=item.name, folder=folder, status=status)
    finally:
        os.close(folder)


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(entry: _Entry) -> bytes | None:
    """The content, if the name still means the same regular file."""
    try:
        descriptor = os.open(entry.leaf, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=entry.folder)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if (status.st_ino, status.st_dev) != (entry.status.st_ino, entry.status.st_dev):
            return None
        return file.read(MAX_FILE_BYTES)
