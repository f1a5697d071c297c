"""A system call filter that needs no privilege: no sockets but local ones, no namespaces, no looking into others.

Refused calls fail with EPERM, as if the right were missing. Numbers: Linux's syscall tables for x86-64 and arm64.
"""

import ctypes
import platform
import struct

PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
SECCOMP_MODE_FILTER = 2
ALLOW, KILL, REFUSE, MISSING = 0x7FFF0000, 0x80000000, 0x00050001, 0x00050026
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER_AT, ARCHITECTURE_AT, FIRST_ARGUMENT_AT = 0, 4, 16
AF_UNIX = 1
NAMESPACE_FLAGS = 0x7E020000
X32_NUMBERS = 0x40000000

# audit architecture; socket, clone, clone3; refused: ptrace, process_vm_*, io_uring_*, bpf, perf, keys, mounts, ...
TABLES = {
    "x86_64": (
        0xC000003E,
        (41, 56, 435),
        (101, 310, 311, 425, 426, 427, 321, 298, 248, 249, 250, 165, 166, 272, 308, 323, 155, 161, 246, 304),
    ),
    "aarch64": (
        0xC00000B7,
        (198, 220, 435),
        (117, 270, 271, 425, 426, 427, 280, 241, 217, 218, 219, 40, 39, 97, 268, 282, 41, 51, 104, 265),
    ),
}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _step(code: int, value: int, then: int = 0, other: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, other, value)


def program(machine: str, *, network: bool) -> bytes:
    """The filter for ``machine`` as classic BPF."""
    architecture, (socket, clone, clone3), refused = TABLES[machine]
    steps = [
        _step(LOAD, ARCHITECTURE_AT),
        _step(EQUAL, architecture, 1, 0),
        _step(RETURN, KILL),
        _step(LOAD, NUMBER_AT),
        _step(AT_LEAST, X32_NUMBERS, 0, 1),
        _step(RETURN, KILL),
        _step(EQUAL, clone3, 0, 1),
        _step(RETURN, MISSING),
    ]
    for number in refused:
        steps += [_step(EQUAL, number, 0, 1), _step(RETURN, REFUSE)]
    if not network:
        steps += [
            _step(EQUAL, socket, 0, 4),
            _step(LOAD, FIRST_ARGUMENT_AT),
            _step(EQUAL, AF_UNIX, 1, 0),
            _step(RETURN, REFUSE),
            _step(RETURN, ALLOW),
        ]
    steps += [
        _step(EQUAL, clone, 0, 3),
        _step(LOAD, FIRST_ARGUMENT_AT),
        _step(ANY_BIT, NAMESPACE_FLAGS, 0, 1),
        _step(RETURN, REFUSE),
        _step(RETURN, ALLOW),
    ]
    return b"".join(steps)


def refuse_calls(*, network: bool) -> bool:
    """Put the filter on this process and all it starts; whether the kernel took it."""
    if platform.machine() not in TABLES:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(platform.machine(), network=network)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    return libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(_Program(len(code) // 8, code))) == 0
