"""Rewards of one group to advantages; plain Python, so samplers need no numerics package."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageEstimate:
    """One value per reward, None where the reward was not usable; ``excluded`` are the indices of those.

    ``usable`` is False with fewer than two valid rewards: the values are then 0. ``zero_variance`` says that all valid
    rewards (at least one) are equal.
    """

    values: tuple[float | None, ...]
    excluded: tuple[int, ...]
    usable: bool
    zero_variance: bool


def estimate_advantages(rewards: Sequence[float | None], *, estimator: str, eps: float = 1e-6) -> AdvantageEstimate:
    """Advantages within one group; None, NaN and infinite rewards are excluded from every baseline.

    ``leave_one_out`` is R minus the mean of the others (RLOO, arXiv 2402.14740), ``mean`` R minus the mean (Dr. GRPO,
    arXiv 2503.20783), ``mean_std_ddof0/1`` divides that by (std + eps) (GRPO, arXiv 2402.03300; ``mean_std`` is ddof1).
    """
    if estimator not in ESTIMATORS:
        raise ConfigError(
            f"unknown estimator {estimator!r}; one of {', '.join(ESTIMATORS)}", setting="advantage_estimator"
        )
    valid = [float(r) for r in rewards if is_usable(r)]
    excluded = tuple(i for i, r in enumerate(rewards) if not is_usable(r))
    usable = len(valid) >= 2
    zero_variance = bool(valid) and min(valid) == max(valid)
    if usable and not zero_variance:
        lowest = min(valid)  # advantages do not change with an offset, but a large one would cost their digits
        values = iter(ESTIMATORS[estimator]([r - lowest for r in valid], eps))
    else:
        values = iter([0.0] * len(valid))
    return AdvantageEstimate(
        values=tuple(next(values) if is_usable(r) else None for r in rewards),
        excluded=excluded,
        usable=usable,
        zero_variance=zero_variance,
    )


def is_usable(reward: float | None) -> TypeGuard[float]:
    return reward is not None and math.isfinite(reward)


def _centred(rewards: Sequence[float]) -> list[float]:
    mean = math.fsum(rewards) / len(rewards)
    return [r - mean for r in rewards]


def _leave_one_out(rewards: Sequence[float], eps: float) -> list[float]:
    total, others = math.fsum(rewards), len(rewards) - 1
    return [r - (total - r) / others for r in rewards]


def _mean(rewards: Sequence[float], eps: float) -> list[float]:
    return _centred(rewards)


def _mean_std(ddof: int) -> Callable[[Sequence[float], float], list[float]]:
    def estimate(rewards: Sequence[float], eps: float) -> list[float]:
        centred = _centred(rewards)
        std = math.sqrt(math.fsum(c * c for c in centred) / (len(rewards) - ddof))
        return [c / (std + eps) for c in centred]

    return estimate


ESTIMATORS: dict[str, Callable[[Sequence[float], float], list[float]]] = {
    "leave_one_out": _leave_one_out,
    "mean": _mean,
    "mean_std": _mean_std(1),
    "mean_std_ddof0": _mean_std(0),
    "mean_std_ddof1": _mean_std(1),
}
