"""The losses against independent formulas and finite differences, and the reduction against any split."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algo import (
    LossInputs,
    LossOutput,
    MissingLogprobs,
    build_loss,
    effective_sample_size,
    evaluate_loss,
    reduction_of,
    reduction_weights,
)
from agentrl.config import AlgoOptions
from agentrl.errors import ConfigError
from agentrl.telemetry import Metrics

NAMES = ("GRPO", "DR_GRPO", "DAPO", "GSPO", "CISPO", "MINIRL", "CrossEntropy")
RATIO_LOSSES = NAMES[:-1]
LOW, HIGH = 0.8, 1.3


def options(name: str, **more: object) -> AlgoOptions:
    return dataclasses.replace(AlgoOptions(), loss_calculater=name, loss_constant=16, **more)


def random_inputs(seed: int, num_tokens: int = 40, num_segments: int = 6) -> LossInputs:
    """Ratios between about 0.2 and 5, none close enough to a limit for a finite difference to cross it."""
    random = np.random.default_rng(seed)
    log_ratio = random.normal(0.0, 0.5, num_tokens)
    logprobs = -random.exponential(1.0, num_tokens) - 0.01
    segments = np.sort(random.integers(0, num_segments, num_tokens))
    weights = reduction_weights(segments, num_sequences=num_segments, reduction="sequence_mean")
    return LossInputs(
        logprobs=torch.tensor(logprobs, requires_grad=True),
        behavior_logprobs=torch.tensor(logprobs - log_ratio),
        advantages=torch.tensor(random.choice([-1.5, -0.3, 0.0, 0.4, 1.2], num_tokens)),
        weights=torch.tensor(weights),
        segments=torch.tensor(segments),
        age=torch.tensor(random.integers(0, 4, num_tokens)),
    )


def grpo(lp: float, lp0: float, mu: float, a: float, s: float) -> float:
    return -min(np.exp(lp - mu) * a, np.clip(np.exp(lp - mu), LOW, HIGH) * a)


def gspo(lp: float, lp0: float, mu: float, a: float, s: float) -> float:
    return -min(s * np.exp(lp - lp0) * a, np.clip(s * np.exp(lp - lp0), LOW, HIGH) * a)


def cispo(lp: float, lp0: float, mu: float, a: float, s: float) -> float:
    return -np.clip(np.exp(lp0 - mu), 0.0, 5.0) * a * lp


def minirl(lp: float, lp0: float, mu: float, a: float, s: float) -> float:
    w = np.exp(lp0 - mu)
    out = (a > 0 and w > 1 + 0.3 * 4) or (a < 0 and w < 1 - 0.2 * 4)
    return 0.0 if out else -w * a * lp


def cross_entropy(lp: float, lp0: float, mu: float, a: float, s: float) -> float:
    return -lp


SURROGATES: dict[str, Callable[[float, float, float, float, float], float]] = {
    "GRPO": grpo,
    "DR_GRPO": grpo,
    "DAPO": grpo,
    "GSPO": gspo,
    "CISPO": cispo,
    "MINIRL": minirl,
    "CrossEntropy": cross_entropy,
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_are_those_of_the_formula_with_stopped_parts_frozen(name: str, seed: int) -> None:
    inputs = random_inputs(seed)
    out = build_loss(options(name))(inputs)
    out.loss.backward()
    lp0, mu = inputs.logprobs.detach().numpy(), inputs.behavior_logprobs.numpy()
    segments = inputs.segments.numpy()
    ratios = [np.exp(np.mean((lp0 - mu)[segments == segment])) for segment in segments]
    surrogate, step = SURROGATES[name], 1e-6
    for t, (lp, m, a, w, s) in enumerate(
        zip(lp0, mu, inputs.advantages.numpy(), inputs.weights.numpy(), ratios, strict=True)
    ):
        difference = (surrogate(lp + step, lp, m, a, s) - surrogate(lp - step, lp, m, a, s)) / (2 * step)
        assert out.token_loss[t].item() == pytest.approx(surrogate(lp, lp, m, a, s), abs=1e-10)
        assert inputs.logprobs.grad[t].item() == pytest.approx(w * difference, abs=1e-7)
        assert out.stopped[t].item() == (name != "CrossEntropy" and a != 0 and abs(difference) < 1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_gradient_preserving_clipping_gives_a_bounded_gradient_beyond_the_clip(seed: int) -> None:
    inputs = random_inputs(seed)
    out = build_loss(options("GRPO", beta1=0.5, beta2=0.7))(inputs)
    out.loss.backward()
    ratio = torch.exp(inputs.logprobs - inputs.behavior_logprobs).detach()
    below, above = (inputs.advantages < 0) & (ratio < LOW), (inputs.advantages > 0) & (ratio > HIGH)
    assert below.any()
    assert above.any()
    assert not out.stopped.any()
    expected = torch.where(below, 0.5 * LOW, torch.where(above, 0.7 * HIGH, ratio)) * -inputs.advantages
    torch.testing.assert_close(inputs.logprobs.grad, inputs.weights * expected)
    torch.testing.assert_close(out.token_loss, expected)


def test_the_bounds_of_the_mask_narrow_with_age_and_strict_wins() -> None:
    inputs = dataclasses.replace(
        random_inputs(0, num_tokens=3),
        logprobs=torch.log(torch.tensor([1.9, 1.9, 1.9], dtype=torch.float64)) - 3.0,
        behavior_logprobs=torch.full((3,), -3.0, dtype=torch.float64),
        advantages=torch.ones(3, dtype=torch.float64),
        age=torch.tensor([0, 2, 10]),
    )
    decayed = build_loss(options("MINIRL", out_of_date_decay=0.1))(inputs)
    assert decayed.stopped.tolist() == [False, False, True]
    strict = build_loss(options("MINIRL", out_of_date_decay=0.1, strict_in_bound=True))(inputs)
    assert strict.stopped.all()
    assert not build_loss(options("MINIRL", out_of_bound_mask=False))(inputs).stopped.any()


@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_a_missing_behaviour_logprob_is_an_error_of_every_ratio_loss(name: str) -> None:
    inputs = random_inputs(0)
    with pytest.raises(MissingLogprobs, match="none at all"):
        build_loss(options(name))(dataclasses.replace(inputs, behavior_logprobs=None))
    holes = inputs.behavior_logprobs.clone()
    holes[3] = torch.nan
    with pytest.raises(MissingLogprobs, match="1 of 40"):
        build_loss(options(name))(dataclasses.replace(inputs, behavior_logprobs=holes))


def test_cross_entropy_needs_no_behaviour_logprobs() -> None:
    inputs = dataclasses.replace(random_inputs(0), behavior_logprobs=None)
    assert torch.isfinite(build_loss(options("CrossEntropy"))(inputs).loss)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_micro_batch_has_loss_zero_and_a_backward(name: str) -> None:
    empty = torch.zeros(0, dtype=torch.float64)
    whole = torch.zeros(0, dtype=torch.int64)
    out = build_loss(options(name))(
        LossInputs(
            logprobs=empty.clone().requires_grad_(),
            behavior_logprobs=empty,
            advantages=empty,
            weights=empty,
            segments=whole,
            age=whole,
        )
    )
    out.loss.backward()
    assert out.loss.item() == 0.0


@pytest.mark.parametrize("name", NAMES)
def test_padding_of_weight_zero_changes_neither_gradient_nor_metrics(name: str) -> None:
    inputs, loss = random_inputs(1), build_loss(options(name))
    alone = loss(inputs)

    def longer(values: torch.Tensor, tail: float) -> torch.Tensor:
        return torch.cat([values, values.new_full((1,), tail)])

    padded = loss(
        LossInputs(
            logprobs=longer(inputs.logprobs, -9.0),
            behavior_logprobs=longer(inputs.behavior_logprobs, 0.0),
            advantages=longer(inputs.advantages, 1.0),
            weights=longer(inputs.weights, 0.0),
            segments=longer(inputs.segments, int(inputs.segments.max()) + 1),
            age=longer(inputs.age, 0),
        )
    )
    assert padded.loss.item() == pytest.approx(alone.loss.item(), abs=1e-14)
    assert padded.metrics == alone.metrics


def test_single_precision_takes_the_same_branches() -> None:
    inputs = random_inputs(2)
    single = LossInputs(
        **{
            field.name: value.float() if torch.is_tensor(value) and value.is_floating_point() else value
            for field in dataclasses.fields(inputs)
            for value in [getattr(inputs, field.name)]
        }
    )
    for name in NAMES:
        double_out, single_out = build_loss(options(name))(inputs), build_loss(options(name))(single)
        assert single_out.loss.dtype == torch.float32
        assert torch.equal(double_out.stopped, single_out.stopped)
        torch.testing.assert_close(single_out.token_loss.double(), double_out.token_loss, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("name", RATIO_LOSSES)
def test_a_ratio_that_overflows_single_precision_leaves_loss_and_gradient_finite(name: str, advantage: float) -> None:
    inputs = LossInputs(
        logprobs=torch.tensor([-1.0, -1.0], requires_grad=True),
        behavior_logprobs=torch.tensor([-200.0, -1.1]),
        advantages=torch.tensor([advantage, advantage]),
        weights=torch.tensor([0.5, 0.5]),
        segments=torch.tensor([0, 1]),
        age=torch.tensor([0, 0]),
    )
    out = build_loss(options(name))(inputs)
    out.loss.backward()
    assert torch.isfinite(out.loss)
    assert torch.isfinite(inputs.logprobs.grad).all()
    assert inputs.logprobs.grad[1] != 0


def split(inputs: LossInputs, parts: np.ndarray) -> list[LossInputs]:
    """Micro-batches of whole segments, segments renumbered from 0 in each."""
    result = []
    for part in np.unique(parts):
        chosen = torch.tensor(parts[inputs.segments.numpy()] == part)
        if chosen.any():
            _, segments = torch.unique(inputs.segments[chosen], return_inverse=True)
            picked = {f.name: getattr(inputs, f.name) for f in dataclasses.fields(inputs)}
            picked = {name: value if value is None else value[chosen] for name, value in picked.items()}
            result.append(LossInputs(**{**picked, "segments": segments}))
    return result


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    name=st.sampled_from(NAMES),
    token_level=st.booleans(),
    skip=st.booleans(),
    parts=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_any_split_into_micro_batches_gives_the_same_gradient_and_metrics(
    seed: int, name: str, token_level: bool, skip: bool, parts: list[int]
) -> None:
    chosen = options(name, token_level_loss=token_level or name == "DAPO", skip_length_normalization=skip)
    inputs, loss = random_inputs(seed), build_loss(chosen)
    weights = reduction_weights(
        inputs.segments.numpy(), num_sequences=7, reduction=reduction_of(chosen), constant=chosen.loss_constant
    )
    inputs = dataclasses.replace(inputs, weights=torch.tensor(weights))
    whole = loss(inputs)
    whole.loss.backward()
    expected, inputs.logprobs.grad = inputs.logprobs.grad.clone(), None
    outs: list[LossOutput] = [loss(part) for part in split(inputs, np.array(parts))]
    for out in outs:
        out.loss.backward()
    torch.testing.assert_close(inputs.logprobs.grad, expected, atol=1e-12, rtol=1e-12)
    metrics = Metrics()
    for out in outs:
        metrics.add(out.metrics)
    assert metrics.results() == pytest.approx(Metrics().add(whole.metrics).results())


def test_reduction_weights_count_stopped_tokens_and_empty_sequences() -> None:
    sequence = np.array([0, 0, 0, 2])
    of = {
        "token_mean": [1 / 4] * 4,
        "sequence_mean": [1 / 9, 1 / 9, 1 / 9, 1 / 3],
        "sequence_sum": [1 / 3] * 4,
        "constant": [1 / 30] * 4,
    }
    for reduction, expected in of.items():
        weights = reduction_weights(sequence, num_sequences=3, reduction=reduction, constant=10)
        assert weights.tolist() == pytest.approx(expected)


def test_the_options_choose_the_reduction() -> None:
    assert reduction_of(options("GRPO")) == "token_mean"
    assert reduction_of(options("GSPO", token_level_loss=False)) == "sequence_mean"
    assert reduction_of(options("MINIRL", token_level_loss=False, skip_length_normalization=True)) == "sequence_sum"
    assert reduction_of(options("DR_GRPO")) == "constant"
    with pytest.raises(ConfigError, match="loss_constant"):
        reduction_of(AlgoOptions(loss_calculater="DR_GRPO"))
    with pytest.raises(ConfigError, match="token_level_loss"):
        reduction_of(options("DAPO", token_level_loss=False))


def test_an_unknown_loss_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'PPO'.*GRPO"):
        build_loss(options("PPO"))


def test_diagnostics_have_the_numbers_of_their_definitions() -> None:
    inputs = random_inputs(3)
    out = build_loss(options("GRPO"))(inputs)
    log_weight = (inputs.logprobs - inputs.behavior_logprobs).detach().numpy()
    weight = np.exp(log_weight)
    results = Metrics().add(out.metrics).results()
    assert results["ratio/max"] == pytest.approx(weight.max())
    assert results["kl/k1"] == pytest.approx(-log_weight.mean())
    assert results["kl/k3"] == pytest.approx((weight - 1 - log_weight).mean())
    assert effective_sample_size(results) == pytest.approx(weight.sum() ** 2 / (len(weight) * (weight**2).sum()))
    assert results["clip/stopped_fraction"] == pytest.approx(out.stopped.double().mean().item())
    sides = results["clip/high_fraction"] + results["clip/low_fraction"]
    assert sides == pytest.approx(results["clip/stopped_fraction"])


def test_evaluate_loss_ignores_tokens_outside_the_mask() -> None:
    sequence = {
        "logprobs": [-1.0, -2.0],
        "old_logprobs": [-1.0, float("nan")],
        "mask": [1, 0],
        "advantages": [1.0, 9.0],
    }
    result = evaluate_loss("grpo", [sequence], options={"reduction": "token_mean"})
    assert result["loss"] == pytest.approx(-1.0)
    assert result["grad"] == [[pytest.approx(-1.0), 0.0]]
