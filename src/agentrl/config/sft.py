"""``SftConfig``: the groups of ``agentrl sft``, checked before anything starts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from agentrl.config.groups import CheckpointOptions, ModelOptions, RunOptions, SftOptimOptions, SftOptions
from agentrl.config.parser import parse_groups
from agentrl.config.run import NOT_NEGATIVE, POSITIVE
from agentrl.errors import ConfigError

GROUPS = (RunOptions, ModelOptions, SftOptions, SftOptimOptions, CheckpointOptions)
EVALUATES_NOTHING = "supervised training evaluates nothing: give the result to `agentrl run` with an eval_file"
WITHOUT_EFFECT = {
    "data_parallel_size": "supervised training runs on one rank",
    "db_connection_string": "supervised training has no store",
    "enable_sampling": "supervised training samples nothing: leave it out",
    "model_name": "nothing is served: leave it out",
    "groups_per_step": "there are no groups here: give per_device_train_batch_size and gradient_accumulation_steps",
    "eval_strategy": EVALUATES_NOTHING,
    "eval_steps": EVALUATES_NOTHING,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    run: RunOptions
    model: ModelOptions
    sft: SftOptions
    optim: SftOptimOptions
    checkpoint: CheckpointOptions

    @classmethod
    def parse(cls, argv: Sequence[str], *, command: str = "sft", description: str = "") -> Self:
        """Raise ``ConfigError`` naming the option for anything that cannot work."""
        built = parse_groups(list(GROUPS), argv, command=command, description=description)
        names = [field.name for field in dataclasses.fields(cls)]
        config = cls(**{name: built[group] for name, group in zip(names, GROUPS, strict=True)})
        check(config)
        return config

    @property
    def folder(self) -> Path:
        return Path(self.run.output_dir) / self.run.run_name

    @property
    def dialogues_per_step(self) -> int:
        return self.optim.per_device_train_batch_size * self.optim.gradient_accumulation_steps

    @property
    def max_tokens_per_microbatch(self) -> int:
        default = self.optim.per_device_train_batch_size * self.optim.max_tokens
        return self.optim.max_tokens_per_microbatch or default

    def flat(self) -> dict[str, Any]:
        """Every option by its flag's name."""
        groups = [getattr(self, field.name) for field in dataclasses.fields(self)]
        return {field.name: getattr(group, field.name) for group in groups for field in dataclasses.fields(group)}

    def save(self, path: Path) -> None:
        import yaml

        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.flat(), sort_keys=False, allow_unicode=True), encoding="utf-8")


def check(config: SftConfig) -> None:
    flat = config.flat()
    defaults = {field.name: field.default for group in GROUPS for field in dataclasses.fields(group)}
    for name, reason in WITHOUT_EFFECT.items():
        if flat[name] != defaults[name]:
            raise ConfigError(reason, setting=f"--{name}")
    for name in POSITIVE:
        if name in flat and not flat[name] > 0:
            raise ConfigError(f"expects a number above 0, got {flat[name]}", setting=f"--{name}")
    for name in NOT_NEGATIVE:
        if name in flat and not flat[name] >= 0:
            raise ConfigError(f"expects 0 or more, got {flat[name]}", setting=f"--{name}")
    for name in ("adam_beta1", "adam_beta2"):
        if not 0 <= flat[name] < 1:
            raise ConfigError(f"expects 0 or more and less than 1, got {flat[name]}", setting=f"--{name}")
    if config.optim.warmup_ratio > 1:
        raise ConfigError(f"expects a part of all steps, 0 to 1, got {flat['warmup_ratio']}", setting="--warmup_ratio")
    if config.optim.max_steps < 1 and config.optim.max_steps != -1:
        raise ConfigError("expects -1 (as many as the dialogues give) or 1 and more", setting="--max_steps")
