"""``forward_backward``: the gradient of one optimizer step, micro-batch by micro-batch.

Shapes: U unique tokens (prefixes shared), T predictions, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algo.losses import LossInputs, LossOutput
from agentrl.batch.micro import MicroBatch
from agentrl.models.load import Policy
from agentrl.parallel import ONE_RANK, Ranks
from agentrl.telemetry import Last, Max, Mean, Metrics, Sum

Loss = Callable[[LossInputs], LossOutput]


def forward_backward(
    policy: Policy,
    loss_fn: Loss,
    microbatches: Sequence[MicroBatch],
    *,
    version: int,
    ranks: Ranks = ONE_RANK,
    chunk: int | None = None,
    with_entropy: bool = False,
) -> Metrics:
    """Accumulate the gradient of ``sum(weights * token_loss)`` over ``microbatches`` of all ranks; the policy's weights
    are ``version``. Any split of the same predictions into micro-batches and ranks gives the same gradient and, up to
    rounding, the same metrics."""
    metrics = Metrics()
    gaps: list[NDArray[np.float32]] = []
    for micro in microbatches:
        logprobs_T, entropy_T = predictions(policy, micro, chunk=chunk, with_entropy=with_entropy)
        out = loss_fn(loss_inputs(micro, logprobs_T))
        out.loss.backward()
        gaps.append(engine_gap(micro, logprobs_T, version))
        trained = int((micro.weights_T != 0).sum())
        metrics.add(
            out.metrics,
            loss=Sum(out.loss.item()),
            trained_tokens=Sum(trained),
            unique_tokens=Sum(len(micro.token_ids_U) if trained else 0),
        )
        if entropy_T is not None:
            weight_T = torch.from_numpy(micro.weights_T != 0).to(entropy_T)
            metrics.add(entropy=Mean(float((entropy_T.detach() * weight_T).sum()), trained))
    return reduced(metrics, gaps, ranks)


def reduced(metrics: Metrics, gaps: Sequence[NDArray[np.float32]], ranks: Ranks) -> Metrics:
    """Over ranks, in their order. A percentile cannot be merged, so the gaps themselves travel."""
    every = ranks.gather((dict(metrics.items()), list(gaps)))
    total = Metrics()
    for values, _ in every:
        total.add(values)
    joined = [gap for _, rank_gaps in every for gap in rank_gaps]
    return total.add(gap_metrics(np.concatenate(joined) if joined else np.zeros(0, dtype=np.float32)))


def predictions(
    policy: Policy, micro: MicroBatch, *, chunk: int | None = None, with_entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [T] of the targets, at the temperatures they were sampled at, and their entropy [T]."""
    to = policy.device
    return policy.score(
        torch.from_numpy(micro.token_ids_U).to(to),
        torch.from_numpy(micro.positions_U).to(to),
        torch.from_numpy(micro.subtree_end_U).to(to),
        torch.from_numpy(micro.source_T).to(to),
        torch.from_numpy(micro.targets_T).to(to),
        torch.from_numpy(micro.temperature_T).to(to),
        chunk=chunk,
        with_entropy=with_entropy,
    )


def loss_inputs(micro: MicroBatch, logprobs_T: Tensor) -> LossInputs:
    to = logprobs_T.device
    return LossInputs(
        logprobs=logprobs_T,
        behavior_logprobs=torch.from_numpy(micro.behavior_logprobs_T).to(to),
        advantages=torch.from_numpy(micro.advantages_T).to(to),
        weights=torch.from_numpy(micro.weights_T).to(to),
        segments=torch.from_numpy(micro.segments_T).to(to),
        age=torch.from_numpy(micro.age_T).to(to),
    )


def engine_gap(micro: MicroBatch, logprobs_T: Tensor, version: int) -> NDArray[np.float32]:
    """|trainer - engine| log-prob of tokens whose whole turn was sampled under the very weights in training."""
    same_T = micro.pure_T & (micro.age_T == 0) & (micro.versions_T == version) & np.isfinite(micro.behavior_logprobs_T)
    ours_T = logprobs_T.detach().float().cpu().numpy()
    return np.abs(ours_T - micro.behavior_logprobs_T)[same_T]


def gap_metrics(gaps: NDArray[np.float32]) -> dict[str, Max | Last | Sum]:
    """``logprob_gap_tokens`` says how many tokens were compared; without any there is no gap to report."""
    metrics: dict[str, Max | Last | Sum] = {"logprob_gap_tokens": Sum(len(gaps))}
    if len(gaps):
        metrics["logprob_gap_max"] = Max(float(gaps.max()))
        metrics["logprob_gap_p999"] = Last(float(np.quantile(gaps, 0.999)))
    return metrics
