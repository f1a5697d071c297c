"""Policy-gradient losses: pure functions over the flat tensors of one micro-batch.

Every tensor has shape [T]: the T trained predictions of all rows. A loss returns one value per token; what the tokens
weigh was decided before (``reduction``), so ``loss = sum(weights * token_loss)``.
Notation: pi the policy in training, mu the rollout engine's policy, A the advantage, sg stop gradient, r the ratio
exp(log pi - base), where base is the proximal log-prob if there is one, else log mu.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentrl.algo.diagnostics import loss_metrics
from agentrl.algo.reduction import reduction_of
from agentrl.algo.tensors import LossInputs, LossOutput
from agentrl.config import AlgoOptions
from agentrl.errors import AgentRLError, ConfigError

MAX_LOG_RATIO = 20.0
"""A ratio beyond e^20 overflows single precision soon after, and 0 * inf is NaN in the backward pass of a clip."""


class MissingLogprobs(AgentRLError):
    """A ratio needs the log-prob at which a token was sampled, and it is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """Limits as the formulas use them. ``epsilon_higher`` is added: the upper limit is 1 + epsilon + epsilon_higher.

    ``beta1``/``beta2`` keep a bounded gradient beyond the lower/upper clip (CE-GPPO, arXiv 2509.20712).
    """

    epsilon: float = 0.2
    epsilon_higher: float = 0.1
    cap_low: float = 0.0
    cap_high: float = 5.0
    is_cap: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    out_of_bound_mask: bool = False
    strict_in_bound: bool = False
    importance_weight_cap_ratio: float = 4.0
    out_of_date_decay: float | None = None

    @property
    def low(self) -> float:
        return 1.0 - self.epsilon

    @property
    def high(self) -> float:
        return 1.0 + self.epsilon + self.epsilon_higher


TokenLoss = Callable[[LossInputs, LossSettings], tuple[Tensor, Tensor]]
"""(inputs, settings) -> (token_loss [T], stopped [T])."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One configured loss; call it on the tensors of a micro-batch."""

    name: str
    token_loss: TokenLoss
    settings: LossSettings = field(default_factory=LossSettings)

    @property
    def uses_ratios(self) -> bool:
        return self.token_loss is not cross_entropy

    def __call__(self, inputs: LossInputs) -> LossOutput:
        if self.uses_ratios:
            require_base_logprobs(self.name, inputs)
        token_loss, stopped = self.token_loss(inputs, self.settings)
        return LossOutput(
            loss=(inputs.weights * token_loss).sum(),
            token_loss=token_loss,
            stopped=stopped,
            metrics=loss_metrics(inputs, stopped),
        )


# --- The losses --------------------------------------------------------------------------------------------------


def clipped(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """-min(r A, clip(r, low, high) A): GRPO (arXiv 2402.03300), Dr. GRPO (2503.20783), DAPO (2503.14476)."""
    log_ratio = log_ratios(inputs)
    token_loss, stopped = clipped_surrogate(torch.exp(log_ratio), inputs, settings)
    return token_loss, stopped | ((log_ratio >= MAX_LOG_RATIO) & (inputs.advantages != 0))


def sequence_clipped(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """GSPO (arXiv 2507.18071, GSPO-token): as ``clipped`` with s_t = sg(s) exp(log pi - sg(log pi)),
    s = exp(mean over the segment of log pi - base)."""
    sequence_ratio = torch.exp(segment_means(log_ratios(inputs).detach(), inputs.segments))
    ratio = sequence_ratio * torch.exp(inputs.logprobs - inputs.logprobs.detach())
    return clipped_surrogate(ratio, inputs, settings)


def capped_weight(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """CISPO (MiniMax-M1, arXiv 2506.13585): -sg(clip(r, cap_low, cap_high)) A log pi; every token keeps a gradient."""
    ratio = torch.exp(log_ratios(inputs).detach())
    weight = ratio.clamp(settings.cap_low, settings.cap_high)
    nothing = torch.zeros_like(ratio, dtype=torch.bool)
    return bounded(-weight * inputs.advantages * inputs.logprobs, nothing, ratio, inputs, settings)


def masked_weight(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """MiniRL (arXiv 2512.01374): -M sg(pi/mu) A log pi, the weight capped from above by ``is_cap``.

    With proximal log-probs M acts on pi/pi_old at low and high, as published; without, on pi/mu at the out-of-bound
    limits, as the reference does.
    """
    behavior = inputs.behavior_logprobs
    assert behavior is not None, "checked by the caller"
    ratio = torch.exp(log_ratios(inputs).detach())
    weight = torch.exp((inputs.logprobs.detach() - behavior).clamp(max=MAX_LOG_RATIO))
    if settings.is_cap is not None:
        weight = weight.clamp(max=settings.is_cap)
    stopped = torch.zeros_like(ratio, dtype=torch.bool)
    if inputs.proximal_logprobs is not None:
        stopped = outside(ratio, inputs.advantages, settings.low, settings.high)
    token_loss = torch.where(stopped, 0.0, -weight * inputs.advantages * inputs.logprobs)
    return bounded(token_loss, stopped, ratio, inputs, settings)


def cross_entropy(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """-log pi; advantages and ratios are ignored."""
    return -inputs.logprobs, torch.zeros_like(inputs.logprobs, dtype=torch.bool)


LOSSES: dict[str, TokenLoss] = {
    "GRPO": clipped,
    "DR_GRPO": clipped,
    "DAPO": clipped,
    "GSPO": sequence_clipped,
    "CISPO": capped_weight,
    "MINIRL": masked_weight,
    "CrossEntropy": cross_entropy,
}


def build_loss(options: AlgoOptions) -> Loss:
    """The loss that the options select, with the ratio pi/mu. Raise ``ConfigError`` for options that contradict it."""
    name = options.loss_calculater
    if name not in LOSSES:
        raise ConfigError(f"unknown loss {name!r}; one of {', '.join(LOSSES)}", setting="loss_calculater")
    reduction_of(options)
    mask = options.out_of_bound_mask if options.out_of_bound_mask is not None else name == "MINIRL"
    settings = LossSettings(
        epsilon=options.epsilon,
        epsilon_higher=options.epsilon_higher,
        cap_low=options.cispo_cap_low,
        cap_high=options.cispo_cap_high,
        is_cap=options.is_cap,
        beta1=options.beta1,
        beta2=options.beta2,
        out_of_bound_mask=mask,
        strict_in_bound=options.strict_in_bound,
        importance_weight_cap_ratio=options.importance_weight_cap_ratio,
        out_of_date_decay=options.out_of_date_decay,
    )
    return Loss(name=name, token_loss=LOSSES[name], settings=settings)


# --- Parts -------------------------------------------------------------------------------------------------------


def log_ratios(inputs: LossInputs) -> Tensor:
    """log pi - base, cut at ``MAX_LOG_RATIO``: beyond it a ratio has no gradient."""
    base = inputs.proximal_logprobs if inputs.proximal_logprobs is not None else inputs.behavior_logprobs
    assert base is not None, "checked by the caller"
    return (inputs.logprobs - base).clamp(max=MAX_LOG_RATIO)


def require_base_logprobs(name: str, inputs: LossInputs) -> None:
    """A missing log-prob never means "on-policy": that would turn the ratio into 1 without a word."""
    if inputs.behavior_logprobs is None:
        raise MissingLogprobs(f"{name} needs the behaviour log-prob of every trained token; there are none at all")
    for kind, values in (("behaviour", inputs.behavior_logprobs), ("proximal", inputs.proximal_logprobs)):
        if values is None:
            continue
        num_missing = int((~torch.isfinite(values)).sum())
        if num_missing:
            raise MissingLogprobs(
                f"{name} needs the {kind} log-prob of every trained token; "
                f"{num_missing} of {values.numel()} are missing or not finite"
            )


def outside(ratio: Tensor, advantages: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Tokens whose ratio already went past the limit in the direction the advantage pushes."""
    return ((advantages > 0) & (ratio > high)) | ((advantages < 0) & (ratio < low))


def clipped_surrogate(ratio: Tensor, inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    advantages = inputs.advantages
    token_loss = -torch.minimum(ratio * advantages, ratio.clamp(settings.low, settings.high) * advantages)
    one = torch.exp(inputs.logprobs - inputs.logprobs.detach())
    fixed = ratio.detach()
    stopped = outside(fixed, advantages, settings.low, settings.high)
    for beta, limit, beyond in (
        (settings.beta1, settings.low, (advantages < 0) & (fixed < settings.low)),
        (settings.beta2, settings.high, (advantages > 0) & (fixed > settings.high)),
    ):
        if beta is not None:
            token_loss = torch.where(beyond, -beta * limit * one * advantages, token_loss)
            stopped = stopped & ~beyond
    return bounded(token_loss, stopped, fixed, inputs, settings)


def bounded(
    token_loss: Tensor, stopped: Tensor, ratio: Tensor, inputs: LossInputs, settings: LossSettings
) -> tuple[Tensor, Tensor]:
    """Take tokens beyond the out-of-bound limits out; they stay in the denominator, their loss is 0."""
    if not settings.out_of_bound_mask:
        return token_loss, stopped
    low, high = out_of_bound_limits(inputs.age, settings)
    out = outside(ratio.detach(), inputs.advantages, low, high)
    return torch.where(out, 0.0, token_loss), stopped | out


def out_of_bound_limits(age: Tensor, settings: LossSettings) -> tuple[float | Tensor, float | Tensor]:
    """1 -/+ epsilon K kappa: K widens; strict_in_bound (kappa 1/K) wins over the decay with the token's age."""
    widening: float | Tensor = settings.importance_weight_cap_ratio
    if settings.strict_in_bound:
        widening = 1.0
    elif settings.out_of_date_decay is not None:
        widening = widening * torch.exp(-age.clamp(min=0).double() * settings.out_of_date_decay)
    return 1.0 - settings.epsilon * widening, 1.0 + (settings.epsilon + settings.epsilon_higher) * widening


def segment_means(values: Tensor, segments: Tensor) -> Tensor:
    """Mean of ``values`` over the tokens of the same segment, at each token."""
    if values.numel() == 0:
        return values
    num_segments = int(segments.max()) + 1
    sums = values.new_zeros(num_segments).index_add_(0, segments, values)
    counts = values.new_zeros(num_segments).index_add_(0, segments, torch.ones_like(values))
    return (sums / counts.clamp(min=1))[segments]
