"""Draw one token per row and its log-prob.

Shapes: N rows, V vocabulary. One uniform number per token and row decides by inverse transform, so a seeded request
draws the same tokens whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.types import Sampling

BELOW_ONE = 1.0 - 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """The sampling values of N rows as tensors; made once and used until the set of rows changes."""

    temperature_N1: Tensor
    greedy_N: Tensor | None
    all_greedy: bool
    filtered: tuple[tuple[int, float, Tensor], ...]
    """(top_k, top_p, indices of the rows with these values)."""

    @classmethod
    def of(cls, samplings: Sequence[Sampling], device: torch.device) -> SamplingPlan:
        greedy = [sampling.temperature == 0 for sampling in samplings]
        groups: dict[tuple[int, float], list[int]] = {}
        for index, sampling in enumerate(samplings):
            if not greedy[index] and (sampling.top_k or sampling.top_p < 1):
                groups.setdefault((sampling.top_k, sampling.top_p), []).append(index)
        return cls(
            temperature_N1=torch.tensor([[sampling.temperature or 1.0] for sampling in samplings], device=device),
            greedy_N=torch.tensor(greedy, device=device) if any(greedy) else None,
            all_greedy=all(greedy),
            filtered=tuple((k, p, torch.tensor(rows, device=device)) for (k, p), rows in groups.items()),
        )


def sample(logits_NV: Tensor, plan: SamplingPlan, uniforms: Sequence[float]) -> tuple[list[int], list[float]]:
    """Tokens and log-probs (nats, float32) of the distribution that was sampled from.

    That is ``log_softmax(logits / temperature)`` over the whole vocabulary; with ``top_k`` or ``top_p`` it is
    renormalised over the tokens kept (temperature first, then top_k, then top_p). Greedy rows report temperature 1.
    """
    scaled_NV = logits_NV.float() / plan.temperature_N1
    for top_k, top_p, rows in plan.filtered:
        scaled_NV[rows] = keep_likely(scaled_NV[rows], top_k, top_p)
    logprobs_NV = torch.log_softmax(scaled_NV, dim=-1)
    if plan.all_greedy:
        tokens_N = logprobs_NV.argmax(dim=-1)
    else:
        cumulative_NV = logprobs_NV.exp().cumsum(dim=-1, dtype=torch.float64)
        draws_N1 = torch.tensor(uniforms, dtype=torch.float64, device=logits_NV.device)[:, None].clamp(max=BELOW_ONE)
        tokens_N = torch.searchsorted(cumulative_NV, draws_N1 * cumulative_NV[:, -1:], right=True)[:, 0]
        tokens_N = tokens_N.clamp(max=logits_NV.shape[-1] - 1)
        if plan.greedy_N is not None:
            tokens_N = torch.where(plan.greedy_N, logprobs_NV.argmax(dim=-1), tokens_N)
    sampled_N = logprobs_NV.gather(1, tokens_N[:, None])[:, 0]
    return tokens_N.tolist(), sampled_N.tolist()


def keep_likely(scaled_NV: Tensor, top_k: int, top_p: float) -> Tensor:
    """Minus infinity outside the ``top_k`` largest, then outside the smallest set that holds ``top_p``."""
    if 0 < top_k < scaled_NV.shape[-1]:
        smallest_N1 = scaled_NV.topk(top_k, dim=-1).values[:, -1:]
        scaled_NV = scaled_NV.masked_fill(scaled_NV < smallest_N1, float("-inf"))
    if top_p < 1:
        ordered_NV, order_NV = scaled_NV.sort(dim=-1, descending=True)
        probabilities_NV = ordered_NV.softmax(dim=-1)
        before_NV = probabilities_NV.cumsum(dim=-1) - probabilities_NV
        beyond_NV = before_NV >= top_p
        beyond_NV[:, 0] = False
        scaled_NV = scaled_NV.masked_fill(beyond_NV.scatter(1, order_NV, beyond_NV), float("-inf"))
    return scaled_NV
