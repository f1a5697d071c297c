"""Log-probs of given tokens from hidden states, chunk by chunk: no more than ``chunk`` rows of logits exist at once.

Shapes: T predictions, D width, V vocabulary, C tokens of a chunk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 2**25
"""Logits of a chunk when its size is not given: 128 MiB in float32."""


def token_logprobs(
    hidden_TD: Tensor,
    lm_head_VD: Tensor,
    targets_T: Tensor,
    temperature_T: Tensor,
    *,
    chunk: int | None = None,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Natural log-probs [T] of ``targets_T`` under ``softmax(hidden @ lm_head / temperature)``, and the entropy [T].

    Logits and both results are float32 (float64 for float64 inputs). The backward pass computes each chunk's logits
    again. Both results have gradients. ``chunk`` is in tokens; None chooses by the vocabulary.
    """
    if chunk is None:
        chunk = max(1, CHUNK_LOGITS // len(lm_head_VD))
    if chunk < 1:
        raise ValueError(f"chunk: expected 1 or more tokens, got {chunk}")
    logprobs_T, entropy_T = _ChunkedLogprobs.apply(hidden_TD, lm_head_VD, targets_T, temperature_T, chunk, with_entropy)
    return logprobs_T, entropy_T if with_entropy else None


def chunks(length: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, length)) for start in range(0, length, size))


def log_softmax(hidden_CD: Tensor, lm_head_VD: Tensor, temperature_C: Tensor) -> Tensor:
    logits_CV = hidden_CD @ lm_head_VD.T
    if logits_CV.dtype != torch.float64:
        logits_CV = logits_CV.float()
    return torch.log_softmax(logits_CV / temperature_C[:, None], dim=-1)


class _ChunkedLogprobs(torch.autograd.Function):
    """With z = logits / temperature, p = softmax(z), H = -sum(p log p):
    d log p_t / dz = onehot_t - p and dH / dz = -p (log p + H)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_TD: Tensor,
        lm_head_VD: Tensor,
        targets_T: Tensor,
        temperature_T: Tensor,
        chunk: int,
        with_entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        precise = torch.float64 if hidden_TD.dtype == torch.float64 else torch.float32
        logprobs_T = hidden_TD.new_empty(len(targets_T), dtype=precise)
        entropy_T = torch.zeros_like(logprobs_T)
        for part in chunks(len(targets_T), chunk):
            logp_CV = log_softmax(hidden_TD[part], lm_head_VD, temperature_T[part])
            logprobs_T[part] = logp_CV.gather(1, targets_T[part, None]).squeeze(1)
            if with_entropy:
                entropy_T[part] = -(logp_CV.exp() * logp_CV).sum(dim=-1)
        ctx.save_for_backward(hidden_TD, lm_head_VD, targets_T, temperature_T, entropy_T)
        ctx.chunk, ctx.with_entropy = chunk, with_entropy
        return logprobs_T, entropy_T

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_logprobs_T, grad_entropy_T = grads
        hidden_TD, lm_head_VD, targets_T, temperature_T, entropy_T = ctx.saved_tensors
        grad_hidden_TD = torch.empty_like(hidden_TD)
        grad_lm_head_VD = torch.zeros_like(lm_head_VD)
        for part in chunks(len(targets_T), ctx.chunk):
            logp_CV = log_softmax(hidden_TD[part], lm_head_VD, temperature_T[part])
            p_CV = logp_CV.exp()
            grad_z_CV = -grad_logprobs_T[part, None] * p_CV
            grad_z_CV.scatter_add_(1, targets_T[part, None], grad_logprobs_T[part, None])
            if ctx.with_entropy:
                grad_z_CV -= grad_entropy_T[part, None] * p_CV * (logp_CV + entropy_T[part, None])
            grad_logits_CV = (grad_z_CV / temperature_T[part, None]).to(hidden_TD.dtype)
            grad_hidden_TD[part] = grad_logits_CV @ lm_head_VD
            grad_lm_head_VD += grad_logits_CV.T @ hidden_TD[part]
        return grad_hidden_TD, grad_lm_head_VD, None, None, None, None
