"""Advantages, filters, reductions and losses. Importing this package loads no torch; the losses do when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.algo.advantage import AdvantageEstimate, estimate_advantages
from agentrl.algo.filters import GroupMember, judge_group, turn_advantages
from agentrl.algo.reduction import reduction_of, reduction_weights

if TYPE_CHECKING:
    from agentrl.algo.losses import (
        Loss,
        LossInputs,
        LossOutput,
        MissingLogprobs,
        build_loss,
        effective_sample_size,
        evaluate_loss,
    )

__all__ = [
    "AdvantageEstimate",
    "GroupMember",
    "Loss",
    "LossInputs",
    "LossOutput",
    "MissingLogprobs",
    "build_loss",
    "effective_sample_size",
    "estimate_advantages",
    "evaluate_loss",
    "judge_group",
    "reduction_of",
    "reduction_weights",
    "turn_advantages",
]

_NEEDS_TORCH = frozenset(
    {
        "Loss",
        "LossInputs",
        "LossOutput",
        "MissingLogprobs",
        "build_loss",
        "effective_sample_size",
        "evaluate_loss",
    }
)


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(import_module("agentrl.algo.losses"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
