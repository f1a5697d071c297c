"""AdamW with decay groups, gradient clipping, and the learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from agentrl.config import OptimOptions
from agentrl.errors import ConfigError
from agentrl.parallel.fsdp import whole

FUSED_DEVICES = {"cpu", "cuda"}


def build_optimizer(model: nn.Module, options: OptimOptions, *, total_steps: int) -> tuple[torch.optim.AdamW, LambdaLR]:
    """AdamW over the trainable parameters and its schedule. Matrices decay; norms and biases do not."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = {parameter.device.type for parameter in parameters} <= FUSED_DEVICES
    optimizer = torch.optim.AdamW(
        decay_groups(parameters, options.weight_decay),
        lr=options.learning_rate,
        betas=(options.adam_beta1, options.adam_beta2),
        eps=options.adam_epsilon,
        fused=fused,
    )
    return optimizer, LambdaLR(optimizer, schedule_of(options, total_steps=total_steps))


def decay_groups(parameters: Iterable[nn.Parameter], weight_decay: float) -> list[dict[str, Any]]:
    parameters = list(parameters)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def schedule_of(options: OptimOptions, *, total_steps: int) -> Callable[[int], float]:
    """Factor on the learning rate of each step, counted from 0.

    Warm-up rises to 1 at its last step, never starting at 0; linear and cosine fall towards 0, which would be reached
    one step after the last.
    """
    if total_steps < 1 and (options.lr_scheduler_type != "constant" or options.warmup_ratio > 0):
        raise ConfigError(
            f"{options.lr_scheduler_type} with warmup_ratio {options.warmup_ratio} needs the number of steps, which is "
            "not known: give --max_steps, or a constant schedule with --warmup_steps",
            setting="--lr_scheduler_type",
        )
    warmup = options.warmup_steps or math.ceil(options.warmup_ratio * total_steps)
    decay = DECAYS[options.lr_scheduler_type]
    length = max(1, total_steps - warmup)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return decay(min(1.0, (step - warmup) / length))

    return factor


DECAYS: dict[str, Callable[[float], float]] = {
    "constant": lambda part: 1.0,
    "linear": lambda part: 1.0 - part,
    "cosine": lambda part: 0.5 * (1.0 + math.cos(math.pi * part)),
}
"""Part of the way after the warm-up (0 to 1) -> factor."""


def clip_gradients(model: nn.Module, max_norm: float) -> float:
    """Scale all gradients to a joint norm of at most ``max_norm``; returns the norm before, which may be inf or nan.
    Parts of sharded gradients count once."""
    return float(whole(nn.utils.clip_grad_norm_(model.parameters(), max_norm)))
