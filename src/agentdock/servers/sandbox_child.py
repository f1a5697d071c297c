"""Run as a script in a fresh interpreter: take the limits on, give privileges up, then run ``main.py``."""

import ctypes
import json
import os
import resource
import signal
import sys
import traceback
from types import ModuleType, TracebackType

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_SET_NO_NEW_PRIVS = 38
CAPABILITY_VERSION = 0x20080522
CAP_DAC_READ_SEARCH = 1 << 2


def take_limits(limits: dict[str, int]) -> None:
    cpu, file_bytes, processes = limits["cpu_seconds"], limits["file_bytes"], limits["processes"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))
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


def die_with_parent(parent: int) -> None:
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def show_own_frames(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback that starts in ``main.py``."""
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    traceback.print_exception(kind, error, trace)


def run(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        source = file.read()
    main = ModuleType("__main__")
    main.__file__ = path
    sys.modules["__main__"] = main
    sys.argv = [path]
    sys.excepthook = show_own_frames
    exec(compile(source, path, "exec"), main.__dict__)


if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    take_limits(options["limits"])
    if options["uid"] is not None:
        become(options["uid"])
    die_with_parent(options["parent"])
    run("main.py")
