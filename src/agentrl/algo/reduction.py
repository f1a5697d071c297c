"""Reduction is data: one weight per trained token, computed once for the whole optimizer step.

The loss is always ``sum(weight * token_loss)``, so any split of the tokens into micro-batches or ranks gives the same
gradient. Denominators count trained tokens before any clip or bound: a stopped token stays in them.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.config import AlgoOptions
from agentrl.errors import ConfigError

Reduction = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]


def reduction_of(options: AlgoOptions) -> Reduction:
    """The reduction that the options ask for."""
    if options.loss_calculater == "DR_GRPO":
        if options.loss_constant <= 0:
            raise ConfigError(
                f"is {options.loss_constant}; DR_GRPO divides by it, set it (usually to max_new_tokens)",
                setting="loss_constant",
            )
        return "constant"
    if options.loss_calculater == "DAPO" and not options.token_level_loss:
        raise ConfigError("is false, but DAPO is the token mean; leave it true or use GRPO", setting="token_level_loss")
    if options.token_level_loss:
        return "token_mean"
    return "sequence_sum" if options.skip_length_normalization else "sequence_mean"


def reduction_weights(
    sequence_T: NDArray[np.int64], *, num_sequences: int, reduction: Reduction, constant: float | None = None
) -> NDArray[np.float64]:
    """Weight of each of the T trained tokens of a step; ``sequence_T`` is the index of the sequence it belongs to.

    A sequence is one record. ``num_sequences`` (B) counts all of the step, also those without a trained token.
    ``token_mean`` 1/T; ``sequence_mean`` 1/(B * tokens of the sequence); ``sequence_sum`` 1/B; ``constant``
    1/(B * constant) (Dr. GRPO, arXiv 2503.20783).
    """
    num_tokens = len(sequence_T)
    if num_tokens == 0:
        return np.zeros(0)
    assert 0 <= sequence_T.min() <= sequence_T.max() < num_sequences, "a token of a sequence that is not in the step"
    if reduction == "token_mean":
        return np.full(num_tokens, 1.0 / num_tokens)
    if reduction == "sequence_mean":
        lengths = np.bincount(sequence_T, minlength=num_sequences)
        return 1.0 / (num_sequences * lengths[sequence_T])
    if reduction == "sequence_sum":
        return np.full(num_tokens, 1.0 / num_sequences)
    assert constant is not None, "reduction 'constant' needs its constant"
    assert constant > 0, "the constant of the reduction is a length"
    return np.full(num_tokens, 1.0 / (num_sequences * constant))
