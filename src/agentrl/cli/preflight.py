"""Everything a run can get wrong that is known before a process starts; each error names the option to change."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from agentrl import DISTRIBUTION
from agentrl.algo import reduction_of
from agentrl.chat.reply import format_named
from agentrl.cli.feed import read_tasks
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.scoring import load_scorer_module, require_scorer
from agentrl.store import open_store
from agentrl.tasks.choice import weight_of
from agentrl.tools.sources import parse_sources
from agentrl.types import Task


def check_before_start(config: RunConfig) -> tuple[list[Task], list[Task]]:
    """Training and held-out tasks of a run whose settings can work."""
    check_sampling_side(config)
    if not config.tasks.train_file:
        raise ConfigError("a run needs tasks: a JSONL file with id, query, answer, scorer", setting="--train_file")
    check_training(config)
    train = read_tasks(config.tasks.train_file, "--train_file")
    check_scorers(train, config.tasks.train_file)
    check_task_sampling(config, train)
    return train, held_out_tasks(config) if config.evaluates else []


def check_before_evaluation(config: RunConfig) -> list[Task]:
    """Tasks of an evaluation whose settings can work."""
    check_sampling_side(config)
    if not config.tasks.eval_file:
        raise ConfigError("an evaluation needs tasks: a JSONL file with id, query, answer", setting="--eval_file")
    return held_out_tasks(config)


def check_sampling_side(config: RunConfig) -> None:
    if not config.run.run_name:
        raise ConfigError("a run needs a name", setting="--run_name")
    check_model(config)
    check_tools(config)
    config.read_budget()
    load_scorer_module(config.tasks.scorer_module)


def held_out_tasks(config: RunConfig) -> list[Task]:
    tasks = read_tasks(config.tasks.eval_file, "--eval_file")
    check_scorers(tasks, config.tasks.eval_file)
    return tasks


def check_model(config: RunConfig) -> None:
    check_model_folder(config.model.model_name_or_path)


def check_model_folder(path: str) -> None:
    if not path:
        raise ConfigError("a run needs a model: the folder of a Hugging Face model", setting="--model_name_or_path")
    if not (Path(path) / "config.json").is_file():
        raise ConfigError(
            f"{path} is not the folder of a model: it has no config.json, and no complete checkpoint-N "
            "(download a model of a hub first)",
            setting="--model_name_or_path",
        )
    if not (Path(path) / "tokenizer.json").is_file():
        raise ConfigError(f"{path} has no tokenizer.json (a fast tokenizer)", setting="--model_name_or_path")
    check_weight_files(Path(path))


def check_weight_files(folder: Path) -> None:
    """Headers only, which tell how long a file must be."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="np"):
                pass
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{path} is damaged or cut off ({error}): copy or download the model again, or name another checkpoint",
                setting="--model_name_or_path",
            ) from error


def check_training(config: RunConfig) -> None:
    """What the trainer refuses, before others were started for it."""
    reduction_of(config.algo_options)
    open_store(config.store_url, run=config.run.run_name)
    if config.model.torch_dtype != "float32":
        raise ConfigError(
            "training computes in float32 (bfloat16 is not built yet, and slower on a CPU): leave the option out",
            setting="--torch_dtype",
        )
    resume = config.run.resume_from_checkpoint
    if resume not in ("", "auto") and not Path(resume).is_dir():
        raise ConfigError(f"no such folder: {resume}; auto takes the newest", setting="--resume_from_checkpoint")


def check_tools(config: RunConfig) -> None:
    specs = parse_sources(config.tools.mcp_manager_url)
    for spec in specs:
        if "$" not in spec.command and shutil.which(spec.command, path=spec.env.get("PATH")) is None:
            raise ConfigError(
                f"tool server {spec.name!r}: there is no program {spec.command!r}", setting="--mcp_manager_url"
            )
    known = [spec.name for spec in specs]
    unknown = [name for name in config.tools.mcp_server_name if name not in known]
    if unknown:
        raise ConfigError(
            f"no tool server {unknown[0]!r}; --mcp_manager_url gives {', '.join(known) or 'none'}",
            setting="--mcp_server_name",
        )
    if config.rollout.tool_call_parser != "auto":
        format_named(config.rollout.tool_call_parser)


def check_scorers(tasks: Sequence[Task], path: str) -> None:
    for task in tasks:
        try:
            require_scorer(task.scorer)
        except ConfigError as error:
            raise ConfigError(f"task {task.task_id}: {error}", setting=path) from error


def check_task_sampling(config: RunConfig, train: Sequence[Task]) -> None:
    """Weights that are given, can be read, and choose something."""
    if config.tasks.task_sampling != "weights" or not train:
        return
    weights = [weight_of(task) for task in train]
    if not any("weight" in task.metadata for task in train):
        raise ConfigError(
            f"no task of {config.tasks.train_file} has a field weight, so all would be sampled equally often: give "
            "weights, or leave the option out",
            setting="--task_sampling weights",
        )
    if not any(weights):
        raise ConfigError(
            f"every task of {config.tasks.train_file} has weight 0: none would be sampled",
            setting="--task_sampling weights",
        )


def require_torch() -> None:
    """Looks for it without the seconds that importing it takes."""
    if find_spec("torch") is None:
        raise ConfigError(f"this command needs torch: pip install '{DISTRIBUTION}[train]'")
