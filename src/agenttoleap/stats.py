"""Statistics of repeated rollouts: pass@k, and means with standard errors clustered by question."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

ERROR = "error"
"""A rollout that did not finish, in place of its score."""


def pass_at_k(n: int, c: int, k: int) -> float | None:
    """Probability that k of n rollouts, c of them correct, hold a correct one: ``1 - C(n-c, k) / C(n, k)``.

    Unbiased (Chen et al. 2021, arXiv 2107.03374, equation 1). None when k > n: undefined, not 0 and not 1.
    """
    if not 0 <= c <= n or k < 1:
        raise ValueError(f"pass@k needs 0 <= c <= n and k >= 1, got n={n}, c={c}, k={k}")
    if k > n:
        return None
    if c > n - k:
        return 1.0
    if c == 0:
        return 0.0
    return -math.expm1(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def summarize(rollouts: Mapping[str, Sequence[float | str]], k: Sequence[int] = ()) -> dict[str, Any]:
    """Mean, standard errors and pass@k of ``{question: [score or "error", ...]}``.

    ``errors_count_as_wrong`` is the headline; ``finished_only`` leaves errors (and questions with nothing else) out.
    A rollout is correct for pass@k when its score is 1; pass@k is the mean over questions, None where k > n anywhere.
    ``stderr_clustered`` is the plain estimate, ``stderr_clustered_small_sample`` has the factor sqrt(Q / (Q - 1)).
    """
    check_scores(rollouts)
    as_wrong = {q: [0.0 if s == ERROR else float(s) for s in scores] for q, scores in rollouts.items()}
    finished = {q: [float(s) for s in scores if s != ERROR] for q, scores in rollouts.items()}
    counts = [(len(scores), sum(s == 1 for s in scores)) for scores in as_wrong.values()]
    return {
        "errors": sum(s == ERROR for scores in rollouts.values() for s in scores),
        "errors_count_as_wrong": clustered_mean(as_wrong),
        "finished_only": clustered_mean(finished),
        "pass_at_k_errors_count_as_wrong": {str(each): mean_pass_at_k(counts, each) for each in k},
    }


def check_scores(rollouts: Mapping[str, Sequence[float | str]]) -> None:
    for question, scores in rollouts.items():
        for index, score in enumerate(scores):
            number = isinstance(score, int | float) and math.isfinite(score)
            if score != ERROR and not number:
                raise ValueError(
                    f"rollout {index} of {question!r}: a score is a finite number or 'error', got {score!r}"
                )


def clustered_mean(scores: Mapping[str, Sequence[float]]) -> dict[str, float | int | None]:
    """Mean over all rollouts and its standard error with the question as cluster (Miller 2024, arXiv 2411.00640)."""
    clusters = [cluster for cluster in scores.values() if cluster]
    n = sum(map(len, clusters))
    if n == 0:
        nothing = dict.fromkeys(("mean", "stderr_clustered", "stderr_clustered_small_sample"))
        return {"rollouts": 0, "questions": 0, **nothing}
    mean = math.fsum(s for cluster in clusters for s in cluster) / n
    stderr = math.sqrt(math.fsum(math.fsum(s - mean for s in cluster) ** 2 for cluster in clusters)) / n
    q = len(clusters)
    return {
        "rollouts": n,
        "questions": q,
        "mean": mean,
        "stderr_clustered": stderr,
        "stderr_clustered_small_sample": stderr * math.sqrt(q / (q - 1)) if q > 1 else None,
    }


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float | None:
    values = [pass_at_k(n, c, k) for n, c in counts]
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known and len(known) == len(values) else None
