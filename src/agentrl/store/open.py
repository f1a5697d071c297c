"""``open_store``: which backend a ``--db_connection_string`` names, and where SQLite must not be used."""

from __future__ import annotations

import re
from pathlib import Path

from agentrl.errors import ConfigError
from agentrl.store.base import LEASE_SECONDS, MAX_ATTEMPTS
from agentrl.store.schema import SETTING, runs_in
from agentrl.store.sqlite import SqliteStore

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs3",
        "nfs4",
        "cifs",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "afs",
        "ncpfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "glusterfs",
        "orangefs",
        "pvfs2",
        "panfs",
        "wekafs",
        "ocfs2",
        "gfs2",
        "davfs",
        *(
            "fuse.sshfs",
            "fuse.glusterfs",
            "fuse.ceph",
            "fuse.ceph-fuse",
            "fuse.beegfs",
            "fuse.juicefs",
            "fuse.s3fs",
            "fuse.gcsfuse",
            "fuse.rclone",
            "fuse.goofys",
            "fuse.davfs",
            "fuse.nfs",
            "fuse.smbnetfs",
            "fuse.weka",
        ),
    }
)


def open_store(
    url: str,
    *,
    run: str,
    lease_seconds: float = LEASE_SECONDS,
    max_attempts: int = MAX_ATTEMPTS,
    read_only: bool = False,
) -> SqliteStore:
    """The store at ``url`` for ``run``; ``await store.open()`` opens it.

    ``sqlite:///run.db`` is relative to the working directory, ``sqlite:////data/run.db`` absolute. Raises
    ``ConfigError`` for any other URL and for a path on a network file system.
    """
    if not run:
        raise ConfigError("is empty; a run needs a name, its documents are kept under it", setting="--run_name")
    path = sqlite_path(url)
    refuse_network_file_system(path)
    return SqliteStore(path, run=run, lease_seconds=lease_seconds, max_attempts=max_attempts, read_only=read_only)


def store_exists(url: str) -> bool:
    """Whether somebody has made the store at ``url``; makes nothing there."""
    return sqlite_path(url).is_file()


def stored_runs(url: str) -> list[str]:
    """Names of the runs in the store at ``url``, the one that changed last at first; changes nothing there."""
    return runs_in(sqlite_path(url))


def sqlite_path(url: str) -> Path:
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("mongodb", "mongodb+srv"):
        raise ConfigError(f"{scheme}:// arrives with the MongoDB backend; use sqlite:///PATH", setting=SETTING)
    if not separator or scheme != "sqlite":
        raise ConfigError(f"expected sqlite:///PATH, got {url!r}", setting=SETTING)
    if not rest.startswith("/") or rest in ("/", "/:memory:"):
        raise ConfigError(
            f"expected sqlite:///PATH (relative) or sqlite:////PATH (absolute) of a file, got {url!r}", setting=SETTING
        )
    return Path(rest[1:]).expanduser()


def refuse_network_file_system(path: Path) -> None:
    mount, kind = file_system_of(path.resolve(), mounts())
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigError(
            f"{path} is on a network file system ({kind}, mounted at {mount}), where SQLite's locks and "
            "write-ahead log do not work between hosts; name a file on a local disk (sqlite:////tmp/run.db), or use a "
            "database server for several hosts (mongodb://, arrives with the MongoDB backend)",
            setting=SETTING,
        )


def mounts() -> str:
    """The kernel's table of mounts; empty on systems that have none to read."""
    try:
        return Path("/proc/mounts").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


def file_system_of(path: Path, mounts: str) -> tuple[str, str]:
    """(mount point, type) of the file system that holds ``path``; of two mounts at one place the later counts."""
    best = ("", "")
    for line in mounts.splitlines():
        _, mount, kind, *_ = [*line.split(), "", "", ""]
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), mount)
        if mount and path.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, kind)
    return best
