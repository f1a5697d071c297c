"""Landlock: this process may read only the folders named, and write only in its own. Needs no privilege."""

import ctypes
import os
import struct

CREATE, ADD_RULE, RESTRICT = 444, 445, 446
PR_SET_NO_NEW_PRIVS = 38
GET_VERSION = 1
PATH_BENEATH = 1
READ = 0b1101  # execute, read a file, read a folder
READ_ONE_FILE = 0b0101
RIGHTS_OF_VERSION = {1: 13, 2: 14, 3: 15, 4: 15}
RIGHTS_NOW = 16
WRITE_ONE_FILE = 0b0110


def rights() -> int:
    """All rights over files that this kernel can take away; 0 where it has no Landlock."""
    version = ctypes.CDLL(None).syscall(CREATE, None, ctypes.c_size_t(0), GET_VERSION)
    return (1 << RIGHTS_OF_VERSION.get(version, RIGHTS_NOW)) - 1 if version > 0 else 0


def confine(readable: list[str], writable: list[str]) -> bool:
    """Keep this process to these paths; whether the kernel did."""
    everything = rights()
    if not everything:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    rules = libc.syscall(CREATE, struct.pack("Q", everything), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    for path in readable:
        _allow(libc, rules, path, READ if os.path.isdir(path) else READ_ONE_FILE)
    for path in writable:
        _allow(libc, rules, path, everything if os.path.isdir(path) else WRITE_ONE_FILE)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    taken = libc.syscall(RESTRICT, rules, 0) == 0
    os.close(rules)
    return taken


def _allow(libc: ctypes.CDLL, rules: int, path: str, allowed: int) -> None:
    try:
        beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    libc.syscall(ADD_RULE, rules, PATH_BENEATH, struct.pack("=Qi", allowed, beneath), 0)
    os.close(beneath)
