"""What an error of SQLite means for the person who runs the store: the file, the cause, and the way out."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

MEGABYTE = 1 << 20

CAUSES = {
    sqlite3.SQLITE_FULL: "the disk is full ({free}). What was being written is taken back and its caller told; later "
    "writes work as soon as there is space again",
    sqlite3.SQLITE_IOERR: "the file system refused to read or write ({free}). Look for a quota, a limit on the size of "
    "files (ulimit -f) or a failing disk; later writes work as soon as that is repaired",
    sqlite3.SQLITE_READONLY: "it cannot be written. File and folder have to be writable, because the write-ahead log "
    "lies beside the file; repair their permissions, or name a file elsewhere",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened. File and folder have to be there and writable, because the "
    "write-ahead log lies beside the file; repair their permissions, or name a file elsewhere",
    sqlite3.SQLITE_NOTADB: "it is no SQLite database; name a new file",
    sqlite3.SQLITE_CORRUPT: "the file is damaged. Stop the run and keep a copy of the file and of its -wal; "
    "sqlite3 FILE 'PRAGMA integrity_check' says where. A new run can start from the newest checkpoint "
    "(--model_name_or_path)",
    sqlite3.SQLITE_BUSY: "another process has held the write lock for {busy_seconds:.0f} s. Look for one that was "
    "stopped or that has the file open in a transaction (a database client); later writes work once it is gone",
}
"""Primary result code of SQLite -> what it means and what to do."""


def explained(path: Path, error: Exception, *, busy_seconds: float) -> str:
    """``path: error: cause``; errors that have no cause of their own keep SQLite's words."""
    code = getattr(error, "sqlite_errorcode", None)
    cause = None if code is None else CAUSES.get(code & 0xFF)
    if cause is None:
        return f"{path}: {error}"
    return f"{path}: {error}: {cause.format(free=free_space(path), busy_seconds=busy_seconds)}"


def free_space(path: Path) -> str:
    try:
        return f"{shutil.disk_usage(path.parent).free / MEGABYTE:,.0f} MB free at {path.parent}"
    except OSError:
        return f"{path.parent} cannot be looked at"
