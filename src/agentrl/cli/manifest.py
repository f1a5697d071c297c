"""What a run was made of, written once at its start: code, packages, files, machine."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from agentrl import DISTRIBUTION, __version__
from agentrl.config import RunConfig

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "mcp", "aiohttp", "math-verify", "safetensors")


def write_manifest(config: RunConfig, path: Path) -> None:
    """Write ``manifest.json``; a resumed run keeps the earlier ones in ``history``."""
    history = json.loads(path.read_text())["history"] if path.exists() else []
    entry = {"time": time.time(), **describe(config)}
    path.write_text(json.dumps({**entry, "history": [*history, entry]}, indent=2))


def describe(config: RunConfig) -> dict[str, Any]:
    files = {name: sha256_of(path) for name, path in input_files(config).items()}
    return {
        "code": {"version": __version__, "distribution": DISTRIBUTION, **git_state()},
        "packages": {name: version_of(name) for name in PACKAGES},
        "files": files,
        "seed": config.run.seed,
        "machine": {"python": platform.python_version(), "system": platform.platform(), "cores": os.cpu_count()},
    }


def input_files(config: RunConfig) -> dict[str, Path]:
    model = Path(config.model.model_name_or_path)
    named = {
        "train_file": Path(config.tasks.train_file or "-"),
        "eval_file": Path(config.tasks.eval_file or "-"),
        "chat_template": model / "chat_template.jinja",
        "tokenizer": model / "tokenizer.json",
    }
    return {name: path for name, path in named.items() if path.is_file()}


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_state() -> dict[str, Any]:
    """Commit and dirty flag when the code runs from a checkout."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return {}

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True).stdout.strip()

    return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}
