"""Files below allowed folders and nowhere else: a path or a link that leads outside is refused."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from agentdock.reading.document import ReadProblem

MAX_FILE_BYTES = 100 * 1024**2
MAX_NAMES = 100


@dataclass(frozen=True, slots=True)
class Roots:
    """The folders that may be read. A relative path is looked for below each of them in turn."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, folders: Sequence[Path]) -> Roots:
        """Raise ``ValueError`` for what is not a folder."""
        for folder in folders:
            if not folder.is_dir():
                raise ValueError(f"{folder} is not a folder that can be read")
        return cls(tuple(folder.resolve() for folder in folders))

    def find(self, uri: str) -> Path:
        """The real path that ``uri`` (a path or a file:// URL) leads to; raise ``ReadProblem`` where it may not."""
        path = _path(uri)
        places = [path] if path.is_absolute() else [folder / path for folder in self.folders]
        inside = [real for real in map(_real, places) if self._root_of(real)]
        if not inside:
            raise ReadProblem(f"{uri} is outside of the folders that may be read ({self})")
        found = next((real for real in inside if real.exists()), None)
        if found is None:
            raise ReadProblem(f"there is no file {uri}{_near(inside[0])}")
        return found

    def bytes_of(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """The content of a path that ``find`` gave; it is opened without following any link that came in between."""
        with ExitStack() as stack:
            descriptor = self._open(path, stack)
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ReadProblem(f"{path.name} is not a regular file")
            if status.st_size > max_bytes:
                raise ReadProblem(f"{path.name} has {status.st_size} bytes; at most {max_bytes} are read")
            with open(descriptor, "rb", closefd=False) as file:
                return file.read(max_bytes)

    def shown(self, path: Path) -> str:
        """``path`` as seen from its root."""
        root = self._root_of(path)
        return str(path.relative_to(root)) if root else path.name

    def __str__(self) -> str:
        return ", ".join(folder.name or str(folder) for folder in self.folders)

    def _root_of(self, real: Path) -> Path | None:
        return next((folder for folder in self.folders if real.is_relative_to(folder)), None)

    def _open(self, path: Path, stack: ExitStack) -> int:
        root = self._root_of(path)
        assert root is not None
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0)
        try:
            if os.open not in os.supports_dir_fd:
                descriptor = os.open(path, flags)
                stack.callback(os.close, descriptor)
                return descriptor
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(root, flags | os.O_DIRECTORY)
            stack.callback(os.close, descriptor)
            for part in path.relative_to(root).parts:
                descriptor = os.open(part, flags, dir_fd=descriptor)
                stack.callback(os.close, descriptor)
        except OSError as error:
            raise ReadProblem(f"{path.name} cannot be opened: {error.strerror}") from error
        return descriptor


def names_in(folder: Path) -> str:
    """The entries of a folder, folders with a slash, for a model that looks around."""
    names = sorted(entry.name + ("/" if entry.is_dir() else "") for entry in folder.iterdir())
    more = f"\n[{len(names) - MAX_NAMES} more]" if len(names) > MAX_NAMES else ""
    return "\n".join(names[:MAX_NAMES]) + more


def _path(uri: str) -> Path:
    if "\0" in uri or not uri.strip():
        raise ReadProblem("the path is empty or has a zero byte in it")
    if "://" not in uri:
        return Path(uri)
    parts = urlsplit(uri)
    if parts.scheme.lower() in ("http", "https"):
        raise ReadProblem(f"{uri} is on the web; only files are read here, fetch_url reads pages")
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost"):
        raise ReadProblem(f"{uri} is neither a path nor a file:// URL of this machine")
    return Path(unquote(parts.path))


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise ReadProblem(f"{path.name} is a link that leads nowhere ({error})") from error


def _near(path: Path) -> str:
    """File names like the one that is missing, where its folder exists."""
    if not path.parent.is_dir():
        return ""
    names = [entry.name for entry in path.parent.iterdir()]
    lowered = {name.lower(): name for name in names}
    near = [lowered[found] for found in difflib.get_close_matches(path.name.lower(), lowered, n=5, cutoff=0.5)]
    return f"; near it: {', '.join(near)}" if near else f"; its folder has {len(names)} entries"
