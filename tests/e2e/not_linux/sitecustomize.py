"""On the search path of a process (and of those it starts), takes away what only Linux has.

Third-party packages here are those of Linux: they keep its folders, and read the platform's name before it changes.
"""

import builtins
import ctypes
import io
import os
import resource
import sys
import sysconfig
import urllib.request  # noqa: F401
from contextlib import suppress
from pathlib import Path

with suppress(ImportError):
    import psutil  # noqa: F401

OURS = tuple(str(Path(__file__).resolve().parents[3] / "src" / package) for package in ("agentrl", "agentdock"))
STANDARD = (os.path.dirname(os.__file__), "<frozen")
HIDDEN = ("/proc", "/dev/shm", "/sys")


def is_hidden(path: object) -> bool:
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        return False
    return text in HIDDEN or text.startswith(tuple(f"{folder}/" for folder in HIDDEN))


def asked_by_us() -> bool:
    """Whether the nearest caller outside the standard library is one of our modules."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(OURS):
            return True
        if not file.startswith(STANDARD) or "site-packages" in file:
            return False
        frame = frame.f_back
    return False


def without_hidden(function):  # type: ignore[no-untyped-def]
    def called(path=".", *args, **kwargs):  # type: ignore[no-untyped-def]
        if is_hidden(path) and asked_by_us():
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **kwargs)

    return called


def refused(kind: int, limits: tuple[int, int]) -> None:
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    set_limit(kind, limits)


class Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> object:
        if name in ("prctl", "capset"):
            raise AttributeError(f"symbol not found: {name}")
        return super().__getattr__(name)


sysconfig.get_config_vars()
sys.platform = "darwin"
set_limit = resource.setrlimit
resource.setrlimit = refused
ctypes.CDLL = Library  # type: ignore[misc]
for name in ("stat", "lstat", "listdir", "scandir", "access", "open"):
    setattr(os, name, without_hidden(getattr(os, name)))
builtins.open = io.open = without_hidden(io.open)
for name in (
    "waitid",
    "setresuid",
    "setresgid",
    "sched_getaffinity",
    "sched_setaffinity",
    "memfd_create",
    "pidfd_open",
):
    if hasattr(os, name):
        delattr(os, name)
