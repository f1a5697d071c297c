"""``RunConfig``: all groups of a run, checked across groups, and the file that is enough to rerun it."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from agentrl.config.budget import Budget, read_limits, read_prices
from agentrl.config.fates import FATES
from agentrl.config.groups import (
    AlgoOptions,
    AsyncOptions,
    BudgetOptions,
    CheckpointOptions,
    EngineOptions,
    ModelOptions,
    OptimOptions,
    RolloutOptions,
    RunOptions,
    ServeOptions,
    TaskOptions,
    ToolOptions,
)
from agentrl.config.parser import parse_options
from agentrl.config.presets import with_preset
from agentrl.errors import ConfigError

KNOWN_SAMPLING = {"temperature", "top_p", "top_k"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """How a configuration came about: the options that were given, and the lines of those without effect."""

    given: frozenset[str] = frozenset()
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    run: RunOptions
    model: ModelOptions
    tasks: TaskOptions
    rollout: RolloutOptions
    tools: ToolOptions
    pacing: AsyncOptions
    spending: BudgetOptions
    algo: AlgoOptions
    optim: OptimOptions
    checkpoint: CheckpointOptions
    engine: EngineOptions
    serve: ServeOptions
    asked: Asked = field(default=Asked(), compare=False)

    @classmethod
    def parse(cls, argv: Sequence[str], *, command: str, description: str = "") -> Self:
        """Raise ``ConfigError`` naming the option for anything that cannot work, before anything starts."""
        parsed = parse_options(GROUPS, argv, command=command, description=description, others=FATES)
        built = with_preset(parsed.build(), parsed.given)
        built[RolloutOptions] = with_attempts(built[RolloutOptions], parsed.given)
        optim = built[OptimOptions]
        size = optim.data_parallel_size or launched_ranks()
        built[OptimOptions] = dataclasses.replace(optim, data_parallel_size=size)
        names = (f.name for f in dataclasses.fields(cls))
        groups = dict(zip(names, (built[group] for group in GROUPS), strict=False))
        config = cls(**groups, asked=Asked(given=parsed.given, notices=parsed.notices))
        check(config)
        return config

    @property
    def folder(self) -> Path:
        return Path(self.run.output_dir) / self.run.run_name

    @property
    def store_url(self) -> str:
        return self.run.db_connection_string or f"sqlite:///{self.folder / 'run.db'}"

    @property
    def groups_per_step(self) -> int:
        """Records of one optimizer step, rounded up to whole groups, unless ``groups_per_step`` says so itself."""
        return self.optim.groups_per_step or math.ceil(self.records_per_step / self.rollout.num_generations)

    @property
    def max_refills(self) -> int | None:
        """Groups without signal that are replaced for one step; None without ``dynamic_sampling``."""
        if not self.algo.dynamic_sampling:
            return None
        return self.algo.dynamic_sampling_limit or 3 * self.groups_per_step

    @property
    def records_per_step(self) -> int:
        """Before the rounding to whole groups."""
        optim = self.optim
        return optim.data_parallel_size * optim.per_device_train_batch_size * optim.gradient_accumulation_steps

    @property
    def algo_options(self) -> AlgoOptions:
        """The algorithm's options with the constant of DR_GRPO resolved: ``max_new_tokens`` unless given."""
        return dataclasses.replace(self.algo, loss_constant=self.algo.loss_constant or self.rollout.max_new_tokens)

    @property
    def max_tokens_per_microbatch(self) -> int:
        default = self.optim.per_device_train_batch_size * self.optim.max_tokens
        return self.optim.max_tokens_per_microbatch or default

    @property
    def max_staleness(self) -> int:
        return 0 if self.pacing.sync_sampling else self.pacing.max_staleness

    def read_budget(self) -> Budget:
        """Limits and prices; raise ``ConfigError`` when the file of prices cannot be used."""
        options = self.spending
        limits = read_limits(options.budget)
        prices = read_prices(Path(options.prices), self.model.model_name) if options.prices else None
        budget = Budget(limits=limits, prices=prices, action=options.budget_action)
        if "money" in limits and prices is not None and not prices.costs_anything:
            raise ConfigError(f"{options.prices} has no price above 0, so money limits nothing", setting="--prices")
        return budget

    @property
    def evaluates(self) -> bool:
        return bool(self.tasks.eval_file) and self.checkpoint.eval_strategy != "no"

    @property
    def groups(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "asked")

    def flat(self) -> dict[str, Any]:
        """Every option by its flag's name."""
        return {f.name: getattr(group, f.name) for group in self.groups for f in dataclasses.fields(group)}

    def save(self, path: Path) -> None:
        import yaml

        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(self.flat(), sort_keys=False, allow_unicode=True), encoding="utf-8")


GROUPS = (
    RunOptions,
    ModelOptions,
    TaskOptions,
    RolloutOptions,
    ToolOptions,
    AsyncOptions,
    BudgetOptions,
    AlgoOptions,
    OptimOptions,
    CheckpointOptions,
    EngineOptions,
    ServeOptions,
)


def with_attempts(options: RolloutOptions, given: frozenset[str]) -> RolloutOptions:
    """One attempt without ``resample_error_records``."""
    if options.resample_error_records:
        return options
    if "max_attempts" in given and options.max_attempts > 1:
        raise ConfigError(
            f"resample_error_records false means 1, not {options.max_attempts}: leave one of the two out",
            setting="--max_attempts",
        )
    return dataclasses.replace(options, max_attempts=1)


def check(config: RunConfig) -> None:
    """Refuse what cannot work, naming the option and the way out."""
    check_ranges(config)
    if not RUN_NAME.fullmatch(config.run.run_name):
        raise ConfigError(
            f"{config.run.run_name!r} cannot name a folder: leave out /, \\ and control characters, and a dot at first",
            setting="--run_name",
        )
    check_sampling("--preferred_sampling_params", config.rollout.preferred_sampling_params)
    check_sampling("--eval_sampling_params", config.rollout.eval_sampling_params)
    train = config.rollout.preferred_sampling_params
    if train.get("top_p", 1.0) != 1.0 or train.get("top_k", 0) != 0:
        raise ConfigError(
            f"{config.algo.loss_calculater} compares log-probs of the whole distribution; top_p and top_k cut it and "
            "make every ratio wrong: leave them out for training (eval_sampling_params may have them)",
            setting="--preferred_sampling_params",
        )
    if train.get("temperature", 1.0) == 0:
        raise ConfigError("temperature 0 gives every sibling the same episode", setting="--preferred_sampling_params")
    check_batch(config)
    if (config.engine.engine == "scripted") != bool(config.engine.engine_script):
        raise ConfigError("--engine scripted and --engine_script need each other", setting="--engine_script")
    if (
        config.algo.skip_length_normalization
        and config.algo.token_level_loss
        and config.algo.loss_calculater != "DR_GRPO"
    ):
        raise ConfigError(
            "has no effect on a token-level loss: add --token_level_loss false, or leave it out",
            setting="--skip_length_normalization",
        )
    if config.pacing.sync_sampling and config.pacing.max_staleness > 1:
        raise ConfigError("sync_sampling means 0: leave one of the two out", setting="--max_staleness")
    check_reuse(config.pacing)
    check_spending(config)
    check_refills(config)


def check_refills(config: RunConfig) -> None:
    """Refills replace groups without signal; where those are trained, or steps fill up otherwise, there are none."""
    algo = config.algo
    if algo.dynamic_sampling_limit and not algo.dynamic_sampling:
        raise ConfigError("has no effect without --dynamic_sampling true", setting="--dynamic_sampling_limit")
    if algo.dynamic_sampling and not algo.drop_zero_advantage:
        raise ConfigError(
            "with --drop_zero_advantage false groups without signal are trained, so there is nothing to replace: "
            "leave one of the two out",
            setting="--dynamic_sampling",
        )
    if algo.dynamic_sampling and config.pacing.max_trained_count > 1:
        raise ConfigError(
            f"with --max_trained_count {config.pacing.max_trained_count} a step is filled with groups that were "
            "trained before, so none is replaced: leave one of the two out",
            setting="--dynamic_sampling",
        )


def check_reuse(pacing: AsyncOptions) -> None:
    """A group may be so old at its last use that its rows would be dropped before it."""
    uses, interval = pacing.max_trained_count, pacing.retrained_interval
    if uses == 1 and interval > 1:
        raise ConfigError(
            "has no effect on groups that are trained once: add --max_trained_count N, or leave it out",
            setting="--retrained_interval",
        )
    ahead = 1 if pacing.sync_sampling else max(1, pacing.max_staleness)
    oldest = (uses - 1) * interval + ahead
    if uses > 1 and oldest > pacing.drop_staleness:
        raise ConfigError(
            f"{uses} uses, {interval} steps apart, make a group up to ({uses} - 1) x {interval} + {ahead} "
            f"(max_staleness, at least 1) = {oldest} steps old at its last use, and rows older than drop_staleness "
            f"{pacing.drop_staleness} are dropped: lower --max_trained_count or --retrained_interval, or raise "
            f"--drop_staleness to {oldest}",
            setting="--max_trained_count",
        )


def check_spending(config: RunConfig) -> None:
    """The file of prices is read when a command needs it: a saved configuration may outlive it."""
    options = config.spending
    limits = read_limits(options.budget)
    if "money" in limits and not options.prices:
        raise ConfigError("money needs the file of prices: add --prices FILE.toml", setting="--budget")
    if not limits and options.budget_action != BudgetOptions().budget_action:
        raise ConfigError("has no effect without a limit: add --budget, or leave it out", setting="--budget_action")


def check_ranges(config: RunConfig) -> None:
    flat = config.flat()
    for name, value in flat.items():
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError("expects a number, got nan", setting=f"--{name}")
    for name in POSITIVE:
        if flat[name] <= 0:
            raise ConfigError(f"expects a number above 0, got {flat[name]}", setting=f"--{name}")
    for name in NOT_NEGATIVE:
        if flat[name] < 0:
            raise ConfigError(f"expects 0 or more, got {flat[name]}", setting=f"--{name}")
    if config.rollout.repetition_early_stop_times == 0:
        raise ConfigError("expects -1 (never) or 1 and more", setting="--repetition_early_stop_times")
    for name in BELOW_ONE:
        if not 0 <= flat[name] < 1:
            raise ConfigError(f"expects 0 or more and less than 1, got {flat[name]}", setting=f"--{name}")
    if config.optim.warmup_ratio > 1:
        raise ConfigError(f"expects a part of all steps, 0 to 1, got {flat['warmup_ratio']}", setting="--warmup_ratio")
    if config.optim.max_steps < 1 and config.optim.max_steps != -1:
        raise ConfigError("expects -1 (as many as the tasks give) or 1 and more", setting="--max_steps")
    if config.algo.cispo_cap_low > config.algo.cispo_cap_high:
        raise ConfigError(
            f"{flat['cispo_cap_low']} is above cispo_cap_high {flat['cispo_cap_high']}", setting="--cispo_cap_low"
        )
    if not 0 <= config.serve.port < 65_536:
        raise ConfigError(f"expects 0 (any free one) to 65535, got {config.serve.port}", setting="--port")
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", config.model.device):
        raise ConfigError(f"expects auto, cpu, cuda or cuda:N, got {config.model.device!r}", setting="--device")
    if config.rollout.num_generations < 2:
        raise ConfigError("a group needs 2 or more episodes for a baseline", setting="--num_generations")


RUN_NAME = re.compile(r"(?:[^./\\\x00-\x1f][^/\\\x00-\x1f]*)?")
POSITIVE = (
    "num_train_epochs eval_generations max_turns max_new_tokens max_prompt_tokens episode_timeout max_silent_turns "
    "target_concurrency max_attempts group_deadline scorer_timeout tool_timeout tool_result_limit learning_rate "
    "per_device_train_batch_size gradient_accumulation_steps max_tokens save_steps engine_slots publish_timeout "
    "wait_timeout sampler_timeout heartbeat_timeout logging_steps min_turns max_grad_norm adam_epsilon adv_scaling "
    "importance_weight_cap_ratio max_trained_count retrained_interval"
).split()
NOT_NEGATIVE = (
    "max_staleness drop_staleness epsilon epsilon_higher weight_decay warmup_steps warmup_ratio groups_per_step "
    "max_concurrent_samples_per_process max_tokens_per_microbatch save_total_limit max_context eval_steps "
    "loss_constant cispo_cap_low dynamic_sampling_limit"
).split()
BELOW_ONE = ("adam_beta1", "adam_beta2")


def launched_ranks() -> int:
    """What torchrun and accelerate launch say; the command that trains checks it."""
    given = os.environ.get("WORLD_SIZE", "")
    return int(given) if given.isdecimal() and int(given) else 1


def check_batch(config: RunConfig) -> None:
    """Groups and records of a step are two ways of saying one thing."""
    optim, usual = config.optim, OptimOptions()
    if optim.data_parallel_size < 1:
        raise ConfigError(f"expects 0 or more, got {optim.data_parallel_size}", setting="--data_parallel_size")
    expected = math.ceil(config.records_per_step / config.rollout.num_generations)
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    records_given = any(getattr(optim, name) != getattr(usual, name) for name in names)
    if optim.groups_per_step not in (0, expected) and records_given:
        ranks = f"{optim.data_parallel_size} ranks x " if optim.data_parallel_size > 1 else ""
        raise ConfigError(
            f"{optim.groups_per_step} disagrees with {ranks}per_device_train_batch_size x gradient_accumulation_steps "
            f"= {config.records_per_step} records = {expected} groups of {config.rollout.num_generations}: give one of "
            "the two",
            setting="--groups_per_step",
        )


def check_sampling(setting: str, values: dict[str, Any]) -> None:
    unknown = sorted(set(values) - KNOWN_SAMPLING)
    if unknown:
        raise ConfigError(f"knows {', '.join(sorted(KNOWN_SAMPLING))}; not {', '.join(unknown)}", setting=setting)
    for name, value in values.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        if not number or value < 0:
            raise ConfigError(f"{name} expects a number of 0 or more, got {value!r}", setting=setting)
    if not 0 < values.get("top_p", 1.0) <= 1:
        raise ConfigError(f"top_p expects a part above 0, at most 1, got {values['top_p']!r}", setting=setting)
    if not isinstance(values.get("top_k", 0), int):
        raise ConfigError(f"top_k expects a whole number, got {values['top_k']!r}", setting=setting)
