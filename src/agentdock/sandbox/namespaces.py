"""The tier ``namespaces``: bubblewrap shows the code only the interpreter and its folder, with no network device."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

INSIDE = Path("/workspace")
CHILD_INSIDE = Path("/sandbox")
SETTINGS = ("ld.so.cache", "localtime", "ssl", "fonts", "alternatives", "mime.types")
RIGHTS = ("CAP_SETUID", "CAP_SETGID")


def missing() -> str:
    """Why the tier cannot even be tried, or nothing."""
    if sys.platform != "linux":
        return "namespaces are a part of Linux"
    return "" if shutil.which("bwrap") else "bubblewrap is not installed (program 'bwrap')"


def command(folder: Path, child: Path, *, network: bool, tmp_bytes: int) -> list[str]:
    """What to put in front of the interpreter; ``folder`` is the only place that can be written and stays."""
    words = ["bwrap", "--die-with-parent", "--new-session", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    words += [] if network else ["--unshare-net"]
    words += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if os.geteuid() == 0:
        words += [word for right in RIGHTS for word in ("--cap-add", right)]
    else:
        words += ["--unshare-user"]
    for place in _system():
        words += ["--symlink", os.readlink(place), str(place)] if place.is_symlink() else _shown(place)
    words += ["--perms", "0755", "--dir", "/etc"]
    for name in SETTINGS + (("resolv.conf", "hosts", "nsswitch.conf") if network else ()):
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    words += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--size", str(tmp_bytes), "--tmpfs", "/tmp"]
    for place in _interpreter():
        for above in reversed(place.parents[:-1]):
            words += ["--perms", "0755", "--dir", str(above)]
        words += _shown(place)
    words += ["--ro-bind", str(child), str(CHILD_INSIDE), "--bind", str(folder), str(INSIDE)]
    return [*words, "--chdir", "/", "--"]


def _system() -> list[Path]:
    places = (Path("/") / name for name in ("usr", "lib", "lib64", "lib32", "bin", "sbin"))
    return [place for place in places if place.exists()]


def _interpreter() -> list[Path]:
    """Where the interpreter and its packages lie, also those that a link leads to."""
    homes = {Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_prefix).resolve()}
    homes |= {Path(entry) for entry in sys.path if entry.endswith("site-packages")}
    return sorted(home for home in homes if home.is_dir() and not home.is_relative_to("/usr"))


def _shown(place: Path) -> list[str]:
    return ["--ro-bind", str(place), str(place)]
