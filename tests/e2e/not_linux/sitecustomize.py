"""On the search path of a process (and of those it starts), takes away what only Linux has."""

import builtins
import ctypes
import io
import os
import resource
import sys
import sysconfig

HIDDEN = ("/proc", "/dev/shm", "/sys")


def is_hidden(path: object) -> bool:
    try:
        text = os.fsdecode(path)  # type: ignore[arg-type]
    except TypeError:
        return False
    return text in HIDDEN or text.startswith(tuple(f"{folder}/" for folder in HIDDEN))


def without_hidden(function):  # type: ignore[no-untyped-def]
    def called(path=".", *args, **kwargs):  # type: ignore[no-untyped-def]
        if is_hidden(path):
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
