"""Take the limits on and give privileges up, before any code that is not ours runs."""

import ctypes
import os
import resource
import signal
import sys
from typing import Any

import landlock
import seccomp

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
CAP_DAC_READ_SEARCH = 1 << 2
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/shm", "/dev/pts", "/dev/tty")
SYSTEM = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt", "/proc/self", "/proc/cpuinfo", "/proc/meminfo")
SETTINGS = ("/etc/ld.so.cache", "/etc/localtime", "/etc/ssl", "/etc/fonts", "/etc/mime.types", "/etc/alternatives")


def confine(options: dict[str, Any]) -> dict[str, str]:
    """Confine this process as ``options`` say; return what held: ``network`` and ``readable``."""
    take_limits(options["limits"])
    if options["uid"] is not None:
        become(options["uid"])
    os.chdir(options["folder"])
    if sys.platform != "linux":
        return {"network": "open", "readable": "all"}
    die_with_parent(options["parent"])
    own_files = not options["landlock"] or landlock.confine(
        [*SYSTEM, *SETTINGS, *sys.path, sys.prefix, sys.base_prefix, os.path.dirname(sys.executable)],
        [os.getcwd(), *DEVICES],
    )
    network = bool(options["limits"]["network"])
    filtered = seccomp.refuse_calls(network=network)
    return {
        "network": "allowed" if network else ("off" if filtered else "open"),
        "readable": "own" if own_files else "all",
    }


def take_limits(limits: dict[str, int]) -> None:
    cpu = limits["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    for kind, most in (
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["open_files"]),
    ):
        resource.setrlimit(kind, (most, most))
    if sys.platform == "linux":
        resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))


def become(uid: int) -> None:
    """Be ``uid`` and nothing else; keep the right to read only if the interpreter's own files would be out of reach."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    kept = 0 if os.access(os.__file__, os.R_OK) else CAP_DAC_READ_SEARCH
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)(kept, kept, 0, 0, 0, 0)) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def die_with_parent(parent: int | None) -> None:
    """End with ``parent``; inside a process namespace there is none to see, and its end ends us anyway."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if parent is None:
        return
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
