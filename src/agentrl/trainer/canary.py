"""The canary: log-probs of a fixed prompt under new weights, which an engine must reproduce before it serves them."""

from __future__ import annotations

import torch

from agentrl.engine.base import Canary
from agentrl.models.load import Policy
from agentrl.parallel.fsdp import reshard

NUM_TOKENS = 32
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}


@torch.no_grad()
def canary_of(policy: Policy, *, tolerance: float | None = None) -> Canary:
    """Log-probs of tokens 1..31 of the canary prompt at temperature 1, through the trainer's own forward."""
    ids_U = torch.tensor(canary_ids(policy.vocabulary_size), device=policy.device)
    positions_U = torch.arange(NUM_TOKENS, device=policy.device)
    ends_U = torch.full_like(positions_U, NUM_TOKENS)
    ones_T = torch.ones(NUM_TOKENS - 1, device=policy.device)
    logprobs_T, _ = policy.score(ids_U, positions_U, ends_U, positions_U[:-1], ids_U[1:], ones_T)
    reshard(policy.score)
    return Canary(
        token_ids=tuple(ids_U.tolist()),
        logprobs=tuple(logprobs_T.tolist()),
        tolerance=TOLERANCE[policy.model.dtype] if tolerance is None else tolerance,
    )


def canary_ids(vocabulary_size: int) -> list[int]:
    """Spread over the vocabulary, the same in every run."""
    return [(7919 * index + 13) % vocabulary_size for index in range(NUM_TOKENS)]
