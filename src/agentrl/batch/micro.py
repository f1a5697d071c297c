"""``MicroBatch``: the hand-over from batch to trainer, numpy only.

Shapes: U unique tokens of the packed trees (depth-first order), T predicted tokens of all rows in the micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass. Token k is visible to token q iff ``k <= q < subtree_end_U[k]``.

    Prediction t reads the hidden state at ``source_T[t]`` and is scored on ``targets_T[t]``. ``weights_T`` are the
    reduction weights of the whole optimizer step, so the loss is always ``sum(weights_T * token_loss_T)``.
    """

    token_ids_U: NDArray[np.int64]
    positions_U: NDArray[np.int64]
    subtree_end_U: NDArray[np.int64]
    source_T: NDArray[np.int64]
    targets_T: NDArray[np.int64]
    behavior_logprobs_T: NDArray[np.float32]
    versions_T: NDArray[np.int64]
    age_T: NDArray[np.int64]
    """Optimizer steps between the weights that sampled the token and the trainer's."""
    advantages_T: NDArray[np.float32]
    weights_T: NDArray[np.float32]
    temperature_T: NDArray[np.float32]
    segments_T: NDArray[np.int64]
    """Index of the segment (root-to-leaf path of one record) of each prediction, for sequence ratios."""
    pure_T: NDArray[np.bool_]
    """True where the whole turn was sampled under one version: the tokens on which engine and trainer must agree."""
