"""What goes into a loss and what comes out: flat tensors over the T trained predictions of a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from agentrl.telemetry import Metric


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """Flat tensors [T]. ``segments``: index of the sequence a token belongs to, for sequence ratios.

    ``age``: optimizer steps between the weights that sampled the token and the trainer's. ``weights`` 0 marks padding.
    """

    logprobs: Tensor
    behavior_logprobs: Tensor | None
    advantages: Tensor
    weights: Tensor
    segments: Tensor
    age: Tensor
    proximal_logprobs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutput:
    """``loss`` is the scalar to call ``backward`` on, ``token_loss`` [T] comes before weights, ``stopped`` [T] marks
    trained tokens that a clip or a bound keeps from having a gradient."""

    loss: Tensor
    token_loss: Tensor
    stopped: Tensor
    metrics: Mapping[str, Metric]
