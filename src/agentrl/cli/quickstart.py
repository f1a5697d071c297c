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

if TYPE_CHECKING:
    from agentrl.models.tiny import Part

NUM_TRAIN, NUM_HELD_OUT = 4000, 64
DEFAULT_NAME = "quickstart"


def main(argv: Sequence[str]) -> int:
    with as_file(files("agentrl.cli") / "quickstart.yaml") as options:
        config = RunConfig.parse(["--config", str(options), *argv], command="quickstart", description=__doc__ or "")
    require_torch()
    from agentrl.models.tiny import TINY_MODEL_DIR

    name = config.run.run_name or free_name(Path(config.run.output_dir), DEFAULT_NAME)
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


def write_split(folder: Path, split: Part, count: int) -> Path:
    from agentrl.models.tiny import make_tasks, write_tasks

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{split}.jsonl"
    write_tasks(path, make_tasks(split, count, seed=0))
    return path
