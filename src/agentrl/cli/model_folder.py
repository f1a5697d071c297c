"""What ``--model_name_or_path`` names, as a folder: a model, the newest checkpoint of a run, or a packaged model."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from agentrl.config import ModelOptions, RunConfig
from agentrl.models.packaged import PREFIX, packaged_model

logger = logging.getLogger(__name__)

CHECKPOINT = re.compile(r"checkpoint-(\d+)")


def with_model_folder(config: RunConfig, *, say: Callable[[str], None] = logger.info) -> RunConfig:
    """The configuration with the model's folder in place of its name, so that every process of a run means the same."""
    return replace(config, model=resolved(config.model, say=say))


def resolved(options: ModelOptions, *, say: Callable[[str], None] = logger.info) -> ModelOptions:
    return replace(options, model_name_or_path=model_folder(options.model_name_or_path, say=say))


def model_folder(name: str, *, say: Callable[[str], None]) -> str:
    """``package:NAME`` is converted on first use; a run folder means its newest complete checkpoint; a name that is
    neither stays as it is, for whoever checks it."""
    if name.startswith(PREFIX):
        return str(packaged_model(name, say=say))
    folder = Path(name)
    if not name or not folder.is_dir() or (folder / "config.json").is_file():
        return name
    saved = [(int(match[1]), path) for path in folder.iterdir() if (match := CHECKPOINT.fullmatch(path.name))]
    usable = [(step, path) for step, path in saved if (path / "COMPLETE").is_file()]
    if not usable:
        return name
    say(f"{name} is a run: its newest checkpoint is {max(usable)[1].name}")
    return str(max(usable)[1])
