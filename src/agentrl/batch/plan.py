"""The rows of one optimizer step to packed micro-batches: shared prefixes, a token budget, weights of the step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl.algo.reduction import reduction_of, reduction_weights
from agentrl.batch.micro import MicroBatch
from agentrl.batch.paths import TrainedPath, row_paths
from agentrl.batch.segments import SampleError
from agentrl.batch.tree import PrefixTree, depth_first
from agentrl.config import AlgoOptions, OptimOptions
from agentrl.telemetry import Max, Mean, Metric, Sum
from agentrl.types import DBRecordData, MaskCause

PrefixSharing = Literal["tree", "turns", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Micro-batches of one step, in the order to run them; empty when no row has anything to train."""

    microbatches: tuple[MicroBatch, ...]
    metrics: Mapping[str, Metric] = field(default_factory=dict)


def plan_step(
    rows: Sequence[DBRecordData],
    *,
    options: AlgoOptions,
    optim: OptimOptions,
    step_of_version: Callable[[int], int],
    step: int,
    max_tokens_per_microbatch: int | None = None,
    prefix_sharing: PrefixSharing = "tree",
    num_ranks: int = 1,
) -> StepPlan:
    """Plan one optimizer step over ``rows``; the same rows in the same order give the same plan.

    ``step`` is the step of the trainer's weights (optimizer steps done), so tokens they sampled have age 0. The budget
    counts unique tokens (default: the option, else batch size x ``max_tokens``); a path longer than it gets a
    micro-batch of its own, since a path needs its whole prefix. ``prefix_sharing``: across rows, within a row, or not
    at all. The number of micro-batches is a multiple of ``num_ranks``, filled up with batches of weight zero; rank r
    runs every ``num_ranks``-th from the r-th on, and they are cut so that no rank has much more to do than another.
    Raise ``SampleError`` for a row that cannot be trained as it is.
    """
    budget = max_tokens_per_microbatch or optim.max_tokens_per_microbatch
    budget = budget or optim.per_device_train_batch_size * optim.max_tokens
    found = [row_paths(row, index=index, max_tokens=optim.max_tokens) for index, row in enumerate(rows)]
    paths = [path for row in found for path in row.paths]
    require_trainable(rows, paths, needs_logprobs=options.loss_calculater != "CrossEntropy")
    weights = step_weights(paths, num_rows=len(rows), options=options)
    ages = [path_ages(path, step_of_version, step) for path in paths]
    families = {"tree": [0] * len(paths), "turns": [path.row for path in paths], "none": list(range(len(paths)))}
    packs = spread(paths, families[prefix_sharing], budget, num_ranks)
    microbatches = [microbatch(paths, weights, ages, families[prefix_sharing], chosen) for chosen in packs]
    metrics = plan_metrics(rows, paths, ages, microbatches, budget)
    metrics["batch/over_long"] = Sum(sum(row.over_long for row in found))
    metrics["batch/unpredictable_tokens"] = Sum(sum(row.unpredictable for row in found))
    return StepPlan(microbatches=padded(microbatches, num_ranks), metrics=metrics)


def require_trainable(rows: Sequence[DBRecordData], paths: Sequence[TrainedPath], *, needs_logprobs: bool) -> None:
    for path in paths:
        record = rows[path.row].record
        if needs_logprobs and not np.isfinite(path.behavior_logprobs_P).all():
            missing = int((~np.isfinite(path.behavior_logprobs_P)).sum())
            raise SampleError(
                f"{record}: {missing} trained tokens have no finite behaviour log-prob", kind="logprob_not_finite"
            )
        if path.temperature_P.min() <= 0:
            raise SampleError(
                f"{record}: sampled at temperature {path.temperature_P.min()}; a greedy turn has no distribution to "
                "train, sample with temperature > 0",
                kind="temperature",
            )


def step_weights(paths: Sequence[TrainedPath], *, num_rows: int, options: AlgoOptions) -> list[NDArray[np.float64]]:
    """Reduction weights of the predictions of each path; a sequence is a row, however many paths it has."""
    lengths = [len(path.targets_P) for path in paths]
    sequence = np.repeat(np.array([path.row for path in paths], dtype=np.int64), lengths)
    weights = reduction_weights(
        sequence, num_sequences=num_rows, reduction=reduction_of(options), constant=options.loss_constant or None
    )
    return np.split(weights, np.cumsum(lengths)[:-1]) if lengths else []


def path_ages(path: TrainedPath, step_of_version: Callable[[int], int], step: int) -> NDArray[np.int64]:
    versions, where = np.unique(path.versions_P, return_inverse=True)
    return np.array([step - step_of_version(int(version)) for version in versions], dtype=np.int64)[where]


# --- Packing -----------------------------------------------------------------------------------------------------


SHARES = (1.0, 1.1, 1.25, 1.5, 2.0)
"""Budgets tried for several ranks, in equal parts of the tokens: pieces rarely fill a part exactly."""


def spread(paths: Sequence[TrainedPath], families: Sequence[int], budget: int, num_ranks: int) -> list[list[int]]:
    """Paths of each micro-batch. For several ranks the budget may shrink, as long as nobody runs more micro-batches for
    it: what counts is the rank with the most tokens, prefixes that the cut repeats included."""
    packs = pack(paths, families, budget)
    if num_ranks > 1 and packs:
        rounds = -(-len(packs) // num_ranks)
        part = sum(tokens for tokens, _ in packs) / (rounds * num_ranks)
        tried = [pack(paths, families, min(budget, math.ceil(part * share))) for share in SHARES]
        packs = min(
            (candidate for candidate in (packs, *tried) if len(candidate) <= rounds * num_ranks),
            key=lambda candidate: max(
                sum(tokens for tokens, _ in candidate[rank::num_ranks]) for rank in range(num_ranks)
            ),
        )
    return [chosen for _, chosen in packs]


def pack(paths: Sequence[TrainedPath], families: Sequence[int], budget: int) -> list[tuple[int, list[int]]]:
    """(unique tokens, paths ascending) of each micro-batch. Trees are cut at branch points only where they exceed the
    budget; the pieces go, largest first, into the fullest micro-batch that has room."""
    used: list[int] = []
    chosen: list[list[int]] = []
    for size, piece in sorted(pieces(paths, families, budget), key=lambda sized: (-sized[0], sized[1])):
        fitting = [number for number, tokens in enumerate(used) if tokens + size <= budget]
        if fitting:
            fullest = max(fitting, key=lambda number: used[number])
            used[fullest] += size
            chosen[fullest] += piece
        else:
            used.append(size)
            chosen.append(list(piece))
    return [(tokens, sorted(indices)) for tokens, indices in zip(used, chosen, strict=True)]


def pieces(paths: Sequence[TrainedPath], families: Sequence[int], budget: int) -> list[tuple[int, list[int]]]:
    """(unique tokens, paths) of whole trees, or of runs of depth-first neighbours of trees over the budget."""
    result: list[tuple[int, list[int]]] = []
    for index, shared in depth_first([path.token_ids_L for path in paths], families):
        length = len(paths[index].token_ids_L)
        size, piece = result[-1] if result else (0, [])
        if shared == 0 or size + length - shared > budget:
            result.append((length, [index]))
        else:
            piece.append(index)
            result[-1] = (size + length - shared, piece)
    return result


def microbatch(
    paths: Sequence[TrainedPath],
    weights: Sequence[NDArray[np.float64]],
    ages: Sequence[NDArray[np.int64]],
    families: Sequence[int],
    chosen: Sequence[int],
) -> MicroBatch:
    """One forward pass over the ``chosen`` paths; predictions stand in the order of the paths."""
    selected = [paths[index] for index in chosen]
    tree = PrefixTree.from_paths([path.token_ids_L for path in selected], [families[index] for index in chosen])
    lengths = [len(path.targets_P) for path in selected]
    return MicroBatch(
        token_ids_U=tree.token_ids_U,
        positions_U=tree.positions_U,
        subtree_end_U=tree.subtree_end_U,
        source_T=joined([nodes[path.source_P] for nodes, path in zip(tree.nodes, selected, strict=True)], np.int64),
        targets_T=joined([path.targets_P for path in selected], np.int64),
        behavior_logprobs_T=joined([path.behavior_logprobs_P for path in selected], np.float32),
        versions_T=joined([path.versions_P for path in selected], np.int64),
        age_T=joined([ages[index] for index in chosen], np.int64),
        advantages_T=joined([path.advantages_P for path in selected], np.float32),
        weights_T=joined([weights[index] for index in chosen], np.float32),
        temperature_T=joined([path.temperature_P for path in selected], np.float32),
        segments_T=np.repeat(np.arange(len(selected)), lengths),
        pure_T=joined([path.pure_P for path in selected], np.bool_),
    )


def joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts).astype(dtype)


def padded(microbatches: Sequence[MicroBatch], num_ranks: int) -> tuple[MicroBatch, ...]:
    """As many micro-batches for each rank, filled up with some of weight zero."""
    return (*microbatches, *(padding_microbatch() for _ in range(-len(microbatches) % num_ranks)))


def padding_microbatch() -> MicroBatch:
    """One token that predicts itself with weight zero, for ranks that have nothing left to do."""
    zero, zero_float = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32)
    return MicroBatch(
        token_ids_U=zero,
        positions_U=zero,
        subtree_end_U=np.ones(1, dtype=np.int64),
        source_T=zero,
        targets_T=zero,
        behavior_logprobs_T=zero_float,
        versions_T=np.full(1, -1, dtype=np.int64),
        age_T=zero,
        advantages_T=zero_float,
        weights_T=zero_float,
        temperature_T=np.ones(1, dtype=np.float32),
        segments_T=zero,
        pure_T=np.zeros(1, dtype=np.bool_),
    )


def plan_metrics(
    rows: Sequence[DBRecordData],
    paths: Sequence[TrainedPath],
    ages: Sequence[NDArray[np.int64]],
    microbatches: Sequence[MicroBatch],
    budget: int,
) -> dict[str, Metric]:
    """Counts of the step; ``sharing`` is how many times an average unique token would run without a tree."""
    unique = sum(len(micro.token_ids_U) for micro in microbatches)
    unfolded = sum(len(path.token_ids_L) for path in paths)
    causes = Counter(cause for row in rows for cause in row.mask)
    num_ages = sum(len(age) for age in ages)
    metrics: dict[str, Metric] = {
        "batch/rows": Sum(len(rows)),
        "batch/microbatches": Sum(len(microbatches)),
        "batch/over_budget": Sum(sum(len(micro.token_ids_U) > budget for micro in microbatches)),
        "batch/unique_tokens": Sum(unique),
        "batch/row_tokens": Sum(unfolded),
        "batch/trained_tokens": Sum(sum(len(path.targets_P) for path in paths)),
        "batch/sharing": Mean(unfolded, unique),
        "batch/fill": Mean(unique, budget * len(microbatches)),
        "batch/age": Mean(float(sum(age.sum() for age in ages)), num_ages),
        "batch/reward": Mean(float(sum(row.reward for row in rows)), len(rows)),
    }
    if num_ages:
        metrics["batch/max_age"] = Max(float(max(age.max() for age in ages)))
    for cause in (MaskCause.FORCED, MaskCause.NO_LOGPROB, MaskCause.CANCELLED, MaskCause.FILTERED):
        metrics[f"batch/{cause.name.lower()}_tokens"] = Sum(causes[int(cause)])
    return metrics
