"""Checkpoints: ``checkpoint-N/`` is a model folder as it lies; its ``state/`` is what training needs to go on.

    checkpoint-40/
    ├── config.json, model.safetensors, tokenizer.json ...    from_pretrained and engines load these
    ├── state/                                                master weights, AdamW moments, schedule, random state
    └── COMPLETE                                              written last; without it the folder is ignored

A checkpoint is written under a temporary name and renamed, so a kill leaves the earlier ones as they were.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors
from torch.optim.lr_scheduler import LambdaLR

from agentrl.config import CheckpointOptions
from agentrl.errors import ConfigError
from agentrl.models.load import Policy
from agentrl.parallel import ONE_RANK, Ranks
from agentrl.trainer.progress import Progress

logger = logging.getLogger(__name__)

SETTING = "--resume_from_checkpoint"
COMPLETE, STATE, PROGRESS = "COMPLETE", "state", "progress.json"
NAME = re.compile(r"checkpoint-(\d+)")
PARTIAL, REPLACED, SUPERSEDED = ".partial", ".replaced", ".superseded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one run, in ``folder``, which all ranks see. All of them call ``restore`` and the saves."""

    folder: Path
    policy: Policy
    optimizer: torch.optim.Optimizer
    schedule: LambdaLR
    options: CheckpointOptions
    ranks: Ranks = ONE_RANK

    def restore(self, resume: str) -> tuple[Progress, dict[str, Any]] | None:
        """Load ``auto`` (the newest complete one, None when there is none) or the checkpoint at a path.

        Returns where it stood and the state of its batch source. ``""`` restores nothing.
        """
        found = self.ranks.on_first(lambda: self._find(resume))
        if found is None:
            return None
        path, saved = found
        self._load_tensors(path / STATE)
        go_on_with(self.schedule, saved["schedule"])
        logger.info("restored %s: step %d, version %d", path, saved["step"], saved["version"])
        return Progress(step=saved["step"], version=saved["version"]), saved["batches"]

    def _find(self, resume: str) -> tuple[Path, dict[str, Any]] | None:
        path = newest(self.folder) if resume == "auto" else Path(resume) if resume else None
        if path is None:
            return None
        require_resumable(path)
        saved = read_progress(path / STATE / PROGRESS)
        require_same_shapes(path, saved["shapes"], shapes(self.policy))
        return path, saved

    def set_aside_later(self, step: int) -> None:
        """Later checkpoints belong to a past that is given up: ``auto`` must not find them. None is deleted."""
        self.ranks.on_first(lambda: set_aside(self.folder, step))

    def save_if_due(self, progress: Progress, batches: dict[str, Any]) -> int | None:
        """The step saved, None when none was due."""
        if progress.step % self.options.save_steps:
            return None
        self.save(progress, batches)
        return progress.step

    def save(self, progress: Progress, batches: dict[str, Any]) -> Path:
        """Write ``checkpoint-STEP``, then delete the oldest beyond ``save_total_limit`` (0 keeps all)."""
        final = self.folder / f"checkpoint-{progress.step}"
        partial = final.with_name(final.name + PARTIAL)
        tensors = self.ranks.whole(self.policy.tensors())
        self.ranks.on_first(lambda: self._save_model(partial, tensors))
        if not self.options.save_only_model:
            with one_process():
                save_tensors(self._tensors(), checkpoint_id=partial / STATE, **self.ranks.checkpoint_group)
        self.ranks.on_first(lambda: self._complete(partial, final, progress, batches))
        return final

    def _save_model(self, partial: Path, tensors: Mapping[str, Tensor]) -> None:
        for leftover in self.folder.glob(f"checkpoint-*{PARTIAL}"):
            remove(leftover)
        partial.mkdir(parents=True)
        self.policy.save(partial, tensors)

    def _complete(self, partial: Path, final: Path, progress: Progress, batches: dict[str, Any]) -> None:
        if not self.options.save_only_model:
            saved = self._progress(progress, batches)
            (partial / STATE / PROGRESS).write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
        (partial / COMPLETE).write_text(f"{progress.step}\n", encoding="utf-8")
        flush_to_disk(partial)
        put_in_place(partial, final)
        self._delete_oldest()

    def _progress(self, progress: Progress, batches: dict[str, Any]) -> dict[str, Any]:
        return {
            "step": progress.step,
            "version": progress.version,
            "schedule": self.schedule.state_dict(),
            "batches": batches,
            "shapes": shapes(self.policy),
        }

    @property
    def way_on(self) -> str:
        """What to tell a person whose run was stopped and saved."""
        if self.options.save_only_model:
            return "its weights are saved, but not what going on needs (--save_only_model)"
        return "go on with --resume_from_checkpoint auto"

    def _tensors(self) -> dict[str, Any]:
        """What each rank saves its part of. The random state is one: ranks draw nothing of their own."""
        state: dict[str, Any] = {
            "model": self.policy.model.state_dict(),
            "optimizer": get_optimizer_state_dict(self.policy.model, self.optimizer),
            "random": {"cpu": torch.get_rng_state()},
        }
        if self.policy.device.type == "cuda":
            state["random"]["cuda"] = torch.cuda.get_rng_state(self.policy.device)
        return state

    def _load_tensors(self, folder: Path) -> None:
        """Settings of the optimizer (betas, decay) stay those of today's options."""
        state = self._tensors()
        try:
            with one_process():
                load_tensors(state, checkpoint_id=folder, **self.ranks.checkpoint_group)
        except CheckpointException as error:
            reasons = {str(failure).partition("\n")[0] for failure, _ in error.failures.values()}
            raise damaged(folder, "; ".join(sorted(reasons))) from error
        self.policy.model.load_state_dict(state["model"])
        settings = [{**group, "params": None} for group in self.optimizer.param_groups]
        set_optimizer_state_dict(self.policy.model, self.optimizer, state["optimizer"])
        for group, setting in zip(self.optimizer.param_groups, settings, strict=True):
            group.update({name: value for name, value in setting.items() if name != "params"})
        torch.set_rng_state(state["random"]["cpu"])
        if "cuda" in state["random"]:
            torch.cuda.set_rng_state(state["random"]["cuda"], self.policy.device)

    def _delete_oldest(self) -> None:
        limit = self.options.save_total_limit
        for _, path in complete(self.folder)[:-limit] if limit else []:
            remove(path)


def read_progress(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(path, str(error)) from error


def damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        f"{path} is damaged or cut off ({reason}): copy the folder again, or go on from an earlier checkpoint-N by its "
        "path",
        setting=SETTING,
    )


def set_aside(folder: Path, step: int) -> None:
    for later, path in complete(folder):
        if later > step:
            aside = path.with_name(path.name + SUPERSEDED)
            remove(aside)
            path.rename(aside)
            logger.warning("%s is later than step %d, where training begins: it is now %s", path, step, aside.name)


def shapes(policy: Policy) -> dict[str, list[int]]:
    return {name: list(parameter.shape) for name, parameter in policy.model.named_parameters()}


def require_same_shapes(path: Path, saved: dict[str, list[int]], ours: dict[str, list[int]]) -> None:
    """Tensors that one side lacks would be passed over when the state is read."""
    names = sorted(name for name in {*saved, *ours} if saved.get(name) != ours.get(name))
    if names:
        differences = "; ".join(
            f"{name} {saved.get(name, 'missing')}, here {ours.get(name, 'missing')}" for name in names[:3]
        )
        raise ConfigError(f"{path} is of another model: {differences} ({len(names)} parameters)", setting=SETTING)


def go_on_with(schedule: LambdaLR, saved: dict[str, Any]) -> None:
    """Stand where ``saved`` stood; the learning rates are those of today's options."""
    schedule.load_state_dict({**saved, "base_lrs": schedule.base_lrs})
    for group, base, factor in zip(
        schedule.optimizer.param_groups, schedule.base_lrs, schedule.lr_lambdas, strict=True
    ):
        group["lr"] = base * factor(schedule.last_epoch)


@contextmanager
def one_process() -> Iterator[None]:
    """Without the warning that there is no process group: there is one process on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        yield


def complete(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of the complete checkpoints, lowest step first."""
    named = [(NAME.fullmatch(path.name), path) for path in folder.glob("checkpoint-*")]
    return sorted((int(match[1]), path) for match, path in named if match and (path / COMPLETE).is_file())


def newest(folder: Path) -> Path | None:
    """The complete checkpoint of the highest step; what a kill left half-written is skipped, with a line."""
    for path in sorted(folder.glob("checkpoint-*")):
        if path.suffix == PARTIAL or (NAME.fullmatch(path.name) and not (path / COMPLETE).is_file()):
            logger.warning("%s is incomplete and is skipped", path)
    found = complete(folder)
    return found[-1][1] if found else None


def require_resumable(path: Path) -> None:
    if not path.is_dir():
        raise ConfigError(f"{path} is not a checkpoint folder (give auto for the newest)", setting=SETTING)
    if not (path / STATE / PROGRESS).is_file():
        raise ConfigError(
            f"{path} has no {STATE}/ (only the model was saved, --save_only_model), so training cannot go on from it: "
            f"to start a new run from its weights use --model_name_or_path {path} and another --run_name",
            setting=SETTING,
        )
    if not (path / COMPLETE).is_file():
        raise ConfigError(f"{path} is incomplete: its save was interrupted; give auto for the newest", setting=SETTING)


def put_in_place(partial: Path, final: Path) -> None:
    """Rename; a folder that is in the way (an earlier life of this step) goes first, and only then is deleted."""
    replaced = final.with_name(final.name + REPLACED)
    remove(replaced)
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    sync(final.parent)
    remove(replaced)


def flush_to_disk(folder: Path) -> None:
    """So that the rename cannot reach the disk before what it names."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)
