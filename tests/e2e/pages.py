"""Pages as programs: their code blocks, what each is for, and a folder in which they are played in order.

The comment before a block says what it is for: ``run``, ``file: NAME``, ``printed`` (what the block before prints), or
``not run: REASON``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README_zh.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"(?:<!-- *(?P<role>[^\n]*?) *-->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
PROGRAMS = ("bash", "sh", "python")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    page: Path
    role: str
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [
        Block(page=page, role=found["role"] or "", language=found["language"], text=found["text"])
        for found in BLOCK.finditer(page.read_text(encoding="utf-8"))
    ]


def play(page: Path, folder: Path, *, timeout: float) -> str:
    """Run the blocks of ``page`` in ``folder``, which looks like a checkout; all that they printed."""
    for name in ("src", "assets", "grpo_example.sh", "minirl_example.sh", "eval_example.sh"):
        (folder / name).symlink_to(ROOT / name)
    printed = last = ""
    for block in blocks(page):
        if block.role.startswith("file: "):
            (folder / block.role.removeprefix("file: ")).write_text(block.text, encoding="utf-8")
        elif block.role == "run":
            last = run(block, folder, timeout=timeout)
            printed += last
        elif block.role == "printed":
            assert last == block.text, f"{page.name} promises\n{block.text}\nbut this is printed:\n{last}"
    return printed


def run(block: Block, folder: Path, *, timeout: float) -> str:
    """The block's output; an exit code that is not 0 fails."""
    command = [sys.executable, "-c"] if block.language == "python" else ["bash", "-euo", "pipefail", "-c"]
    done = subprocess.run(
        [*command, block.text],
        cwd=folder,
        env=environment(folder),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{block.page.name}:\n{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def environment(folder: Path) -> dict[str, str]:
    """``python`` and ``agentrl`` are those of this checkout."""
    binaries = folder / "bin"
    if not binaries.exists():
        binaries.mkdir()
        for name, command in (("python", ""), ("agentrl", " -m agentrl")):
            program = binaries / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{command} "$@"\n')
            program.chmod(0o755)
    path = os.pathsep.join([str(binaries), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])}
