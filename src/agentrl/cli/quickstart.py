"""``agentrl quickstart``: a small agent learns to use a tool on this machine's CPU.

Everything is real and in processes of its own: MCP tool server, engine, sampler, trainer. The options are those of
``quickstart.yaml`` beside this file; flags change them.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from agentrl.cli.preflight import require_torch
from agentrl.cli.run import free_name, run
from agentrl.config import RunConfig
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.models.tiny import Part

NUM_TRAIN, NUM_HELD_OUT = 4000, 64
DEFAULT_NAME = "quickstart"


def main(argv: Sequence[str]) -> int:
    with as_file(files("agentrl.cli") / "quickstart.yaml") as options:
        config = RunConfig.parse(["--config", str(options), *argv], command="quickstart", description=__doc__ or "")
    require_torch()
    from agentrl.models.tiny import TINY_MODEL_DIR

    name = config.run.run_name or default_name(config)
    data = Path(config.run.output_dir) / f"{name}-data"
    paths = {
        "run_name": name,
        "model_name_or_path": config.model.model_name_or_path or str(TINY_MODEL_DIR),
        "train_file": config.tasks.train_file or str(write_split(data, "train", NUM_TRAIN)),
        "eval_file": config.tasks.eval_file or str(write_split(data, "heldout", NUM_HELD_OUT)),
    }
    flags = [f"--{option}={value}" for option, value in paths.items()]
    with as_file(files("agentrl.cli") / "quickstart.yaml") as options:
        config = RunConfig.parse(["--config", str(options), *argv, *flags], command="quickstart")
    run(config, Console())
    return 0


def default_name(config: RunConfig) -> str:
    """A name that is free; to resume, the newest run that was started without a name."""
    output = Path(config.run.output_dir)
    started = [path.parent for path in output.glob(f"{DEFAULT_NAME}*/run.db")]
    if config.run.resume_from_checkpoint and started:
        return max(started, key=lambda folder: (folder / "run.db").stat().st_mtime).name
    return free_name(output, DEFAULT_NAME)


def write_split(folder: Path, split: Part, count: int) -> Path:
    from agentrl.models.tiny import make_tasks, write_tasks

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror}", setting="--output_dir") from error
    path = folder / f"{split}.jsonl"
    write_tasks(path, make_tasks(split, count, seed=0))
    return path
