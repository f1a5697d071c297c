"""What a run is about to do, in a few lines of numbers, printed once before it starts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console

from agentrl.algo import reduction_of
from agentrl.cli.feed import planned_steps
from agentrl.config import AlgoOptions, RunConfig
from agentrl.config.presets import open_settings
from agentrl.tools.sources import parse_sources
from agentrl.types import Task

WIDTH, LABEL = 80, 11
ESTIMATORS = {
    "leave_one_out": "score - mean of the others (GRPO's paper: mean_std)",
    "mean": "score - mean of the group",
    "mean_std": "(score - mean of the group) / its deviation (n - 1)",
    "mean_std_ddof0": "(score - mean of the group) / its deviation (n)",
    "mean_std_ddof1": "(score - mean of the group) / its deviation (n - 1)",
}
REDUCTIONS = {
    "token_mean": "mean over tokens",
    "sequence_mean": "mean over episodes of the mean over tokens",
    "sequence_sum": "mean over episodes of the sum over tokens",
    "constant": "sum over tokens by a constant",
}


def print_start(console: Console, config: RunConfig, train: Sequence[Task] | None, held_out: Sequence[Task]) -> None:
    """``train`` None: the tasks are in the store. Options accepted without effect follow, one line each."""
    for line in [*start_screen(config, train, held_out), *idle_options(config)]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def start_screen(config: RunConfig, train: Sequence[Task] | None, held_out: Sequence[Task]) -> list[str]:
    """At most 12 lines of at most 80 characters."""
    lines = {
        "run": f"{config.run.run_name}, seed {config.run.seed}, in {config.folder}",
        "model": f"{config.model.model_name_or_path} on {config.model.device}",
        "tasks": tasks(config, train, held_out),
        "tools": ", ".join(spec.name for spec in parse_sources(config.tools.mcp_manager_url)) or "none",
        "step": step(config, train),
        "loss": f"{config.algo.loss_calculater}, {REDUCTIONS[reduction_of(config.algo_options)]}",
        "ratio": ratio(config.algo),
        "advantage": f"{config.algo.advantage_estimator}: {ESTIMATORS[config.algo.advantage_estimator]}",
        "staleness": staleness(config),
        "reuse": reuse(config),
        "budget": budget(config),
        "preset": preset(config),
    }
    return [line for label, text in lines.items() for line in laid_out(label, text)]


def idle_options(config: RunConfig) -> list[str]:
    return [f"{'no effect':<{LABEL}}--{notice}" for notice in config.asked.notices]


def laid_out(label: str, text: str) -> list[str]:
    """A label and its text; lists of settings go on in a second line, of paths and names the middle is left out."""
    if label in ("ratio", "preset"):
        filled = textwrap.wrap(text, WIDTH - LABEL)
        return [f"{label if number == 0 else '':<{LABEL}}{line}" for number, line in enumerate(filled)]
    if not text:
        return []
    line, kept = f"{label:<{LABEL}}{text}", WIDTH - 3
    return [line if len(line) <= WIDTH else f"{line[: kept - kept // 2]}...{line[-(kept // 2) :]}"]


def tasks(config: RunConfig, train: Sequence[Task] | None, held_out: Sequence[Task]) -> str:
    epochs = config.tasks.num_train_epochs
    training = "those in the store" if train is None else f"{len(train)} x {counted(epochs, 'epoch')}"
    if config.tasks.task_sampling != "uniform":
        training += f", by {config.tasks.task_sampling}"
    if not held_out:
        return f"{training}; no evaluation"
    every = f", every {counted(config.checkpoint.eval_steps, 'step')}" if config.checkpoint.eval_steps else ""
    return f"{training}; {len(held_out)} held out, played before and after{every}"


def step(config: RunConfig, train: Sequence[Task] | None) -> str:
    """The arithmetic of one optimizer step."""
    optim, groups, size = config.optim, config.groups_per_step, config.rollout.num_generations
    asked = f"{optim.per_device_train_batch_size} x {optim.gradient_accumulation_steps} records -> "
    given = "groups_per_step: " if optim.groups_per_step else asked
    text = f"{given}{counted(groups, 'group')} x {size} = {groups * size} records"
    steps = planned_steps(config, len(train)) if train is not None else max(config.optim.max_steps, 0)
    refills = f"; up to {config.max_refills} refills" if config.max_refills is not None else ""
    return f"{text}; {counted(steps, 'step')}{refills}" if steps else f"{text}{refills}"


def staleness(config: RunConfig) -> str:
    ahead = (
        "max_staleness 0 (sync_sampling)" if config.pacing.sync_sampling else f"max_staleness {config.max_staleness}"
    )
    return f"{ahead}, drop_staleness {counted(config.pacing.drop_staleness, 'step')}"


def reuse(config: RunConfig) -> str:
    if config.pacing.max_trained_count == 1:
        return ""
    apart = counted(config.pacing.retrained_interval, "step")
    return f"each group is trained {config.pacing.max_trained_count} times, {apart} apart"


def budget(config: RunConfig) -> str:
    limits = config.read_budget()
    said = [f"{limits.shown(name, most)} {limits.unit(name)}" for name, most in limits.limits.items()]
    return f"{', '.join(said)}; then {limits.action}" if said else ""


def preset(config: RunConfig) -> str:
    if config.algo.preset != "none":
        return config.algo.preset
    name, changes = open_settings(config.algo, config.asked.given)
    if not changes:
        return ""
    return f"none; --preset {name} would set {', '.join(f'{key} {shown(value)}' for key, value in changes.items())}"


def shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- Bounds of the ratio -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioBounds:
    """Limits of pi/mu as numbers; None where the loss has none. ``mask`` is at age 0: decay narrows it with age."""

    clip: tuple[float, float] | None = None
    weight: tuple[float, float] | None = None
    mask: tuple[float, float] | None = None


def ratio_bounds(algo: AlgoOptions) -> RatioBounds:
    """The numbers that ``build_loss`` computes with, without torch (a test compares them)."""
    loss = algo.loss_calculater
    if loss == "CrossEntropy":
        return RatioBounds()
    higher = algo.epsilon + algo.epsilon_higher
    widening = 1.0 if algo.strict_in_bound else algo.importance_weight_cap_ratio
    masked = algo.out_of_bound_mask if algo.out_of_bound_mask is not None else loss == "MINIRL"
    weights = {
        "CISPO": (algo.cispo_cap_low, algo.cispo_cap_high),
        "MINIRL": (0.0, math.inf if algo.is_cap is None else algo.is_cap),
    }
    return RatioBounds(
        clip=None if loss in weights else (1 - algo.epsilon, 1 + higher),
        weight=weights.get(loss),
        mask=(1 - algo.epsilon * widening, 1 + higher * widening) if masked else None,
    )


def ratio(algo: AlgoOptions) -> str:
    bounds = ratio_bounds(algo)
    if bounds == RatioBounds():
        return "none: log-probs alone"
    parts = []
    if bounds.clip:
        parts.append(f"{'of episodes ' if algo.loss_calculater == 'GSPO' else ''}clipped to {span(bounds.clip)}")
    if bounds.weight:
        parts.append(f"weight within {span(bounds.weight)}")
    decays = algo.out_of_date_decay is not None and not algo.strict_in_bound
    narrowing = f", x exp(-{algo.out_of_date_decay:g} age)" if decays else ""
    parts.append(f"masked out of {span(bounds.mask)}{narrowing}" if bounds.mask else "no out-of-bound mask")
    return "; ".join(parts)


def span(limits: tuple[float, float]) -> str:
    return f"[{limits[0]:.6g}, {limits[1]:.6g}]"
