import dataclasses
import json
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trainer_help import KeepingPublisher, gradients, model, plan, random_rows, write_model

from agentrl.algo import build_loss
from agentrl.batch.micro import MicroBatch
from agentrl.config import AlgoOptions, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.errors import ConfigError, Interrupted
from agentrl.models.load import Policy, load_policy
from agentrl.telemetry import JsonlSink, StepRecord, Telemetry
from agentrl.trainer.batches import ScriptedBatchSource
from agentrl.trainer.canary import canary_ids, canary_of
from agentrl.trainer.guards import GapLimits, StepRefused, load_replay, require_gap
from agentrl.trainer.loop import TrainConfig, train
from agentrl.trainer.optim import build_optimizer, schedule_of
from agentrl.trainer.step import forward_backward, predictions

STEP_NAMES = {"loss", "grad_norm", "lr", "trained_tokens", "unique_tokens", "logprob_gap_tokens", "tokens_per_second"}


def scored_by(policy: Policy, micro: MicroBatch, *, version: int = 0) -> MicroBatch:
    """As an engine with the same weights would have sampled it."""
    with torch.no_grad():
        logprobs, _ = predictions(policy, micro)
    versions = np.full_like(micro.versions_T, version)
    return dataclasses.replace(micro, behavior_logprobs_T=logprobs.numpy(), versions_T=versions)


def config(folder: Path, model_folder: Path, **more: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "folder": folder,
        "total_steps": 0,
        "model": ModelOptions(device="cpu", model_name_or_path=str(model_folder)),
        "optim": OptimOptions(learning_rate=3e-3, lr_scheduler_type="constant"),
        "algo": AlgoOptions(),
        "checkpoint": CheckpointOptions(save_steps=2),
        "gap_limits": None,
    }
    return TrainConfig(**values | more)


def scripted(num_steps: int, **how: Any) -> list[tuple[MicroBatch, ...]]:
    return [plan(random_rows(step, **how), budget=60) for step in range(num_steps)]


def same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> bool:
    return set(ours) == set(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_every_step_is_published_saved_when_due_and_acknowledged_in_this_order(tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []

    class Source(ScriptedBatchSource):
        def published(self, publication: Any, progress: Any, parent: Any) -> None:
            super().published(publication, progress, parent)
            events.append(("published", progress.step))

        def state(self) -> dict[str, Any]:
            events.append(("state", len(self.publications) - 1))
            return super().state()

        def ack(self, batch: Any) -> None:
            super().ack(batch)
            saved = (tmp_path / "run" / f"checkpoint-{batch.step}").exists()
            events.append(("saved and ack" if saved else "ack", batch.step))

    publisher = KeepingPublisher()
    log = tmp_path / "metrics.jsonl"
    telemetry = Telemetry([JsonlSink(log)])
    source = Source(scripted(3))
    done = train(config(tmp_path / "run", write_model(tmp_path / "m")), source, publisher, telemetry)
    telemetry.close()

    seen = [event for event in events if event[0] != "state"]
    assert seen == [
        ("published", 0),
        ("published", 1),
        ("ack", 1),
        ("published", 2),
        ("saved and ack", 2),
        ("published", 3),
        ("ack", 3),
    ]
    assert (done.step, done.version) == (3, 3)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoint-2", "checkpoint-3"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    assert lines[0].keys() >= STEP_NAMES
    assert {"seconds/forward_backward", "seconds/optimizer", "seconds/publish", "seconds/save"} <= lines[0].keys()
    assert not same_weights(publisher.weights[0], publisher.weights[1])


def test_training_raises_the_log_probs_of_what_was_rewarded(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    policy = load_policy(folder, ModelOptions(device="cpu"))
    rows = random_rows(3, groups=2, siblings=4)
    micros = tuple(scored_by(policy, micro) for micro in plan(rows))

    def favour(policy: Policy, sign: int) -> float:
        total = 0.0
        for micro in micros:
            logprobs = scored_by(policy, micro).behavior_logprobs_T
            total += float(logprobs[np.sign(micro.advantages_T) == sign].mean())
        return total

    publisher = KeepingPublisher()
    telemetry = Telemetry([])
    source = ScriptedBatchSource([micros] * 8)
    options = config(tmp_path / "run", folder, optim=OptimOptions(learning_rate=2e-3))
    train(options, source, publisher, telemetry)
    trained = load_policy(tmp_path / "run/checkpoint-8", ModelOptions(device="cpu"))
    assert favour(trained, 1) > favour(policy, 1) + 0.05
    assert favour(trained, -1) < favour(policy, -1) - 0.05
    assert same_weights(publisher.weights[8], {n: p.detach() for n, p in trained.model.named_parameters()})


def test_a_resumed_run_is_the_uninterrupted_run_bit_for_bit(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    batches = scripted(6)
    optim = OptimOptions(learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.1)
    options = config(tmp_path / "straight", folder, optim=optim, total_steps=6)
    straight = KeepingPublisher()
    train(options, ScriptedBatchSource(batches), straight, Telemetry([]))

    for cut in (2, 3):
        run = tmp_path / f"cut{cut}"
        first, second = KeepingPublisher(), KeepingPublisher()
        stop = threading.Event()
        source = ScriptedBatchSource(batches)
        source.ack = lambda batch, cut=cut, stop=stop: stop.set() if batch.step == cut else None  # type: ignore[method-assign]
        half = dataclasses.replace(options, folder=run)
        with pytest.raises(Interrupted, match=f"stopped after step {cut}; go on with --resume_from_checkpoint auto"):
            train(half, source, first, Telemetry([]), stop)
        torch.manual_seed(999)
        resumed = dataclasses.replace(half, resume="auto")
        done = train(resumed, ScriptedBatchSource(batches), second, Telemetry([]))
        assert (done.step, done.version) == (6, 6)
        assert sorted(second.weights) == list(range(cut, 7))
        for version, weights in second.weights.items():
            assert same_weights(weights, straight.weights[version]), (cut, version)


def test_total_steps_end_training_before_the_batches_do(tmp_path: Path) -> None:
    source = ScriptedBatchSource(scripted(4))
    options = config(tmp_path / "run", write_model(tmp_path / "m"), total_steps=1)
    assert train(options, source, KeepingPublisher(), Telemetry([])).step == 1
    assert source.acknowledged == [1]


def spoiled(batch: Sequence[MicroBatch], **arrays: Any) -> tuple[MicroBatch, ...]:
    return (dataclasses.replace(batch[0], **arrays), *batch[1:])


def test_numbers_that_are_not_finite_stop_the_step_before_weights_change_and_save_the_batch(tmp_path: Path) -> None:
    good, bad = scripted(2)
    poison = bad[0].advantages_T.copy()
    poison[0] = math.inf
    source = ScriptedBatchSource([good, spoiled(bad, advantages_T=poison)])
    publisher = KeepingPublisher()
    folder = tmp_path / "run"
    with pytest.raises(StepRefused, match=r"step 2: loss is .*weights are unchanged.*refused/step-2\.npz"):
        train(config(folder, write_model(tmp_path / "m")), source, publisher, Telemetry([]))
    assert source.acknowledged == [1]
    assert sorted(publisher.weights) == [0, 1]
    assert (folder / "checkpoint-1/COMPLETE").is_file(), "what was trained before is kept"
    replay = load_replay(folder / "refused/step-2.npz")
    assert len(replay) == len(bad)
    assert replay[0].advantages_T[0] == math.inf
    np.testing.assert_array_equal(replay[-1].token_ids_U, bad[-1].token_ids_U)


def test_an_engine_that_scores_otherwise_than_the_trainer_stops_the_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m")
    policy = load_policy(folder, ModelOptions(device="cpu"))
    agreeing = tuple(scored_by(policy, micro) for micro in plan(random_rows(0)))
    off = agreeing[0].behavior_logprobs_T.copy()
    off[2] += 3e-4
    options = config(tmp_path / "run", folder, gap_limits=GapLimits())
    train(options, ScriptedBatchSource([agreeing]), KeepingPublisher(), Telemetry([]))
    with pytest.raises(StepRefused, match=r"max 3\.00e-04 \(limit 1e-04\), p99\.9 .*\(limit 1e-05"):
        train(
            dataclasses.replace(options, folder=tmp_path / "other"),
            ScriptedBatchSource([spoiled(agreeing, behavior_logprobs_T=off)]),
            KeepingPublisher(),
            Telemetry([]),
        )


def test_the_gap_counts_only_tokens_sampled_under_the_very_weights_in_training(tmp_path: Path) -> None:
    policy = model(tmp_path)
    (micro,) = plan(random_rows(0))
    micro = scored_by(policy, micro)
    num = len(micro.targets_T)
    off = micro.behavior_logprobs_T.copy()
    off[:3] += 1.0
    pure, age, versions = micro.pure_T.copy(), micro.age_T.copy(), micro.versions_T.copy()
    pure[0], age[1], versions[2] = False, 1, 7
    micro = dataclasses.replace(micro, behavior_logprobs_T=off, pure_T=pure, age_T=age, versions_T=versions)
    results = gradients(policy, [micro])[0].results()
    assert results["logprob_gap_tokens"] == num - 3
    assert results["logprob_gap_max"] < 1e-5
    assert results["logprob_gap_p999"] <= results["logprob_gap_max"]


def test_the_percentile_is_held_only_over_enough_tokens(tmp_path: Path) -> None:
    record = StepRecord(1)
    record.add({"logprob_gap_tokens": 2000.0, "logprob_gap_max": 5e-5, "logprob_gap_p999": 4e-5})
    require_gap(record, GapLimits(), (), tmp_path / "replay.npz")
    record["logprob_gap_tokens"] = 20_000.0
    with pytest.raises(StepRefused, match=r"p99\.9 4\.00e-05"):
        require_gap(record, GapLimits(), (), tmp_path / "replay.npz")


def test_the_canary_is_fixed_and_scored_at_temperature_one(tmp_path: Path) -> None:
    policy = model(tmp_path)
    canary = canary_of(policy)
    assert canary.token_ids == tuple(canary_ids(61))
    assert len(canary.token_ids) == 32
    assert len(canary.logprobs) == 31
    assert canary.tolerance == 1e-4
    stock = torch.log_softmax(stock_logits(tmp_path, canary.token_ids), dim=-1)
    expected = stock[:-1].gather(1, torch.tensor(canary.token_ids[1:])[:, None]).squeeze(1)
    torch.testing.assert_close(torch.tensor(canary.logprobs), expected, atol=1e-5, rtol=0)


def stock_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    with torch.no_grad():
        return stock(torch.tensor([list(token_ids)])).logits[0]


def test_schedules_warm_up_and_fall(tmp_path: Path) -> None:
    linear = schedule_of(OptimOptions(lr_scheduler_type="linear", warmup_steps=2), total_steps=6)
    assert [linear(step) for step in range(6)] == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    cosine = schedule_of(OptimOptions(lr_scheduler_type="cosine", warmup_ratio=0.2), total_steps=5)
    assert [round(cosine(step), 4) for step in range(5)] == [1.0, 1.0, 0.8536, 0.5, 0.1464]
    constant = schedule_of(OptimOptions(), total_steps=0)
    assert constant(0) == constant(10**6) == 1.0
    with pytest.raises(ConfigError, match="needs the number of steps"):
        schedule_of(OptimOptions(lr_scheduler_type="linear"), total_steps=0)


def test_matrices_decay_and_norms_do_not(tmp_path: Path) -> None:
    policy = model(tmp_path, "qwen2")
    optimizer, _ = build_optimizer(policy.model, OptimOptions(weight_decay=0.1), total_steps=1)
    decaying, plain = optimizer.param_groups
    assert (decaying["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {p.ndim for p in decaying["params"]} == {2}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decaying["params"]) + len(plain["params"]) == len(list(policy.model.parameters()))


def test_entropy_is_measured_when_asked_for(tmp_path: Path) -> None:
    policy = model(tmp_path)
    metrics = forward_backward(
        policy, build_loss(AlgoOptions()), plan(random_rows(0)), version=0, with_entropy=True
    ).results()
    assert 0 < metrics["entropy"] <= math.log(61)
