"""How far the trained policy is from the one that sampled: clips, ratios, KL, effective sample size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from agentrl.algo.tensors import LossInputs
from agentrl.telemetry import Max, Mean, Metric


def loss_metrics(inputs: LossInputs, stopped: Tensor) -> dict[str, Metric]:
    """Token-weighted diagnostics over the tokens with a weight; ``ess`` needs the sums: see ``effective_sample_size``.

    ``kl/k1`` and ``kl/k3`` estimate KL(mu, pi): E[log mu - log pi] and E[w - 1 - log w], w = pi/mu.
    """
    trained = inputs.weights != 0
    num_tokens = trained.sum()
    positive = inputs.advantages > 0
    quantities = [num_tokens, (stopped & trained & positive).sum(), (stopped & trained & ~positive).sum()]
    log_weight = None
    if inputs.behavior_logprobs is not None and inputs.logprobs.numel():
        log_weight = torch.where(trained, (inputs.logprobs - inputs.behavior_logprobs).detach(), 0.0).double()
        weight = torch.where(trained, torch.exp(log_weight), 0.0)
        k3 = torch.where(trained, weight - 1 - log_weight, 0.0)
        quantities += [weight.max(), weight.sum(), (weight * weight).sum(), -log_weight.sum(), k3.sum()]
    count, high, low, *ratios = torch.stack([quantity.double() for quantity in quantities]).tolist()
    metrics: dict[str, Metric] = {
        "clip/high_fraction": Mean(high, count),
        "clip/low_fraction": Mean(low, count),
        "clip/stopped_fraction": Mean(high + low, count),
    }
    if log_weight is not None and count and all(map(math.isfinite, ratios)):
        largest, total, squares, k1, k3_total = ratios
        metrics |= {
            "ratio/max": Max(largest),
            "ratio/mean": Mean(total, count),
            "ratio/square_mean": Mean(squares, count),
            "kl/k1": Mean(k1, count),
            "kl/k3": Mean(k3_total, count),
        }
    return metrics


def effective_sample_size(results: Mapping[str, float]) -> float | None:
    """(sum w)^2 / (n sum w^2) in (0, 1] from reduced metrics; None when no ratio was measured."""
    mean, square_mean = results.get("ratio/mean"), results.get("ratio/square_mean")
    return mean * mean / square_mean if mean is not None and square_mean else None
