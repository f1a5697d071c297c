"""Advantages, filters, reductions and losses. Importing this package loads no torch; the losses do when asked for."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentrl.algo.advantage import AdvantageEstimate, estimate_advantages
from agentrl.algo.filters import GroupMember, judge_group, turn_advantages
from agentrl.algo.reduction import reduction_of, reduction_weights

if TYPE_CHECKING:
    from agentrl.algo.diagnostics import effective_sample_size
    from agentrl.algo.evaluate import evaluate_loss
    from agentrl.algo.losses import Loss, MissingLogprobs, build_loss
    from agentrl.algo.tensors import LossInputs, LossOutput

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

_NEEDS_TORCH = {
    "Loss": "losses",
    "LossInputs": "tensors",
    "LossOutput": "tensors",
    "MissingLogprobs": "losses",
    "build_loss": "losses",
    "effective_sample_size": "diagnostics",
    "evaluate_loss": "evaluate",
}


def __getattr__(name: str) -> Any:
    if name in _NEEDS_TORCH:
        return getattr(import_module(f"agentrl.algo.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
