"""The tier ``container``: docker or podman, with gVisor's ``runsc`` where the daemon has it."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from agentdock.sandbox.limits import Limits
from agentdock.sandbox.namespaces import CHILD_INSIDE, INSIDE

ENGINES = ("docker", "podman")
ASK_SECONDS = 10
REMOVE_SECONDS = 10


def missing(image: str) -> str:
    """Why the tier cannot even be tried, or nothing."""
    if not image:
        return "no container image is named (--image)"
    return "" if engine() else "neither docker nor podman is installed"


def engine() -> str:
    return next((name for name in ENGINES if shutil.which(name)), "")


def has_gvisor() -> bool:
    """Whether the engine can run containers on gVisor's kernel instead of this one."""
    asked = subprocess.run(
        [engine(), "info", "--format", "{{json .}}"], capture_output=True, text=True, timeout=ASK_SECONDS, check=False
    )
    return asked.returncode == 0 and '"runsc"' in asked.stdout


def command(
    folder: Path, child: Path, *, image: str, name: str, uid: int | None, gvisor: bool, limits: Limits
) -> list[str]:
    """What to put in front of ``python3``; the container is called ``name`` so that it can be removed."""
    words = [engine(), "run", "--rm", "--pull", "never", "--name", name, "--read-only", "--cap-drop", "ALL"]
    words += ["--security-opt", "no-new-privileges", "--pids-limit", str(limits.processes)]
    words += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes), "--cpus", "1"]
    words += ["--network", "bridge" if limits.network else "none", "--tmpfs", f"/tmp:size={limits.disk_bytes}"]
    words += ["--runtime", "runsc"] if gvisor else []
    words += [] if uid is None else ["--user", f"{uid}:{uid}"]
    words += ["--volume", f"{child}:{CHILD_INSIDE}:ro", "--volume", f"{folder}:{INSIDE}", "--workdir", str(INSIDE)]
    words += ["--env", f"HOME={INSIDE}", "--env", "MPLBACKEND=Agg"]
    return [*words, image]


def remove(name: str) -> None:
    """End the container, whatever runs in it; the client's end does not."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run([engine(), "rm", "--force", name], capture_output=True, timeout=REMOVE_SECONDS, check=False)
