"""Drawing tokens: per-row temperature, top-k, top-p and seed, and the log-prob of what was drawn.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from agentrl.types import Sampling

UNIFORMS_AHEAD = 64


class Draws:
    """A request's own stream of uniform numbers, so that a seed gives the same tokens in any company."""

    def __init__(self, seed: int | None) -> None:
        self._generator = np.random.Generator(np.random.Philox(seed))
        self._ahead = np.empty(0)
        self._next = 0

    def next(self) -> float:
        if self._next == len(self._ahead):
            self._ahead, self._next = self._generator.random(UNIFORMS_AHEAD), 0
        self._next += 1
        return float(self._ahead[self._next - 1])


def draw(logits_NV: Tensor, samplings: Sequence[Sampling], uniforms_N: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Token ids [N] and their log-probs [N] in nats, float32.

    Log-probs are those of the distribution drawn from: the whole softmax at the row's temperature, or what top-k and
    top-p leave of it, renormalised. Temperature 0 takes the most likely token and reports its log-prob at
    temperature 1. Drawing is by inverse CDF in float64, one uniform a token.
    """
    temperatures = [s.temperature if s.temperature > 0 else 1.0 for s in samplings]
    scaled_NV = logits_NV.float()
    if any(t != 1.0 for t in temperatures):
        scaled_NV = scaled_NV / torch.tensor(temperatures, device=logits_NV.device)[:, None]
    if any(s.top_k or s.top_p < 1.0 for s in samplings):
        scaled_NV = keep_likely(scaled_NV, samplings)
    logprobs_NV = torch.log_softmax(scaled_NV, dim=-1)
    cdf_NV = logprobs_NV.double().exp_().cumsum_(dim=-1)
    at_N1 = torch.tensor(uniforms_N, dtype=torch.float64, device=logits_NV.device)[:, None] * cdf_NV[:, -1:]
    ids_N = torch.searchsorted(cdf_NV, at_N1, right=True)[:, 0].clamp_(max=logits_NV.shape[1] - 1)
    if any(s.temperature == 0 for s in samplings):
        greedy_N = torch.tensor([s.temperature == 0 for s in samplings], device=logits_NV.device)
        ids_N = torch.where(greedy_N, logprobs_NV.argmax(dim=-1), ids_N)
    return ids_N, logprobs_NV.gather(1, ids_N[:, None])[:, 0]


def keep_likely(scaled_NV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Set to -inf what top-k or top-p cut away; the most likely token always stays."""
    sorted_NV, order_NV = scaled_NV.sort(dim=-1, descending=True)
    vocab = scaled_NV.shape[1]
    top_k_N = torch.tensor([s.top_k or vocab for s in samplings], device=scaled_NV.device)
    top_p_N = torch.tensor([s.top_p for s in samplings], device=scaled_NV.device)
    rank_V = torch.arange(vocab, device=scaled_NV.device)
    before_NV = torch.softmax(sorted_NV, dim=-1).cumsum(dim=-1) - torch.softmax(sorted_NV, dim=-1)
    cut_NV = (rank_V >= top_k_N[:, None]) | (before_NV >= top_p_N[:, None])
    cut_NV[:, 0] = False
    return torch.full_like(scaled_NV, -torch.inf).scatter(1, order_NV, sorted_NV.masked_fill(cut_NV, -torch.inf))
