"""Run by torchrun on two ranks: one launch, many checks. Rank 0 also trains alone, and prints what to compare."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from trainer_help import KeepingPublisher, plan, random_rows, relative, write_model

from agentrl.algo import build_loss
from agentrl.batch.micro import MicroBatch
from agentrl.batch.plan import padded
from agentrl.config import AlgoOptions, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.errors import AgentRLError, WaitTimeout
from agentrl.models.load import Policy, load_policy
from agentrl.parallel import ONE_RANK, Launch, Ranks, join
from agentrl.parallel.fsdp import whole
from agentrl.telemetry import Telemetry
from agentrl.trainer.batches import Batch, ScriptedBatchSource
from agentrl.trainer.canary import canary_of
from agentrl.trainer.guards import load_replay
from agentrl.trainer.loop import TrainConfig, train
from agentrl.trainer.optim import clip_gradients
from agentrl.trainer.progress import Progress
from agentrl.trainer.shared import SharedPublisher, SharedSource, SharedStop
from agentrl.trainer.step import forward_backward

Results = dict[str, Any]
STEPS = 4


class Curve(Telemetry):
    """Keeps the values of each step."""

    def __init__(self) -> None:
        super().__init__([])
        self.steps: list[dict[str, float]] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.steps.append(fields)


def config(folder: Path, model_folder: Path, **more: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "folder": folder,
        "total_steps": STEPS,
        "model": ModelOptions(device="cpu", model_name_or_path=str(model_folder)),
        "optim": OptimOptions(
            learning_rate=3e-3, lr_scheduler_type="cosine", warmup_steps=2, weight_decay=0.1, max_grad_norm=0.05
        ),
        "algo": AlgoOptions(),
        "checkpoint": CheckpointOptions(save_steps=2),
        "gap_limits": None,
    }
    return TrainConfig(**values | more)


def batches() -> list[tuple[MicroBatch, ...]]:
    planned = [plan(random_rows(step), budget=50) for step in range(STEPS)]
    assert any(len(micros) % 2 for micros in planned), "some step is to need padding"
    return planned


def gradients_of(policy: Policy, micros: tuple[MicroBatch, ...], ranks: Ranks) -> tuple[dict[str, float], float, Any]:
    metrics = forward_backward(policy, build_loss(AlgoOptions()), micros, version=0, ranks=ranks, with_entropy=True)
    before = {name: whole(p.grad).clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    norm = clip_gradients(policy.model, 0.01)
    after = {name: whole(p.grad).clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    return metrics.results(), norm, (before, after)


def gradients_match(folder: Path, ranks: Ranks) -> Results:
    """Largest relative difference over all gradients, before and after clipping, and over all metrics."""
    found: Results = {}
    cases: list[tuple[str, bool, dict[str, Any]]] = [
        ("qwen3", True, {}),
        ("llama", False, {}),
        ("qwen2", True, {"gradient_checkpointing": True}),
        ("mistral", False, {"gradient_checkpointing": True}),
    ]
    for family, tied, options in cases:
        here = folder / family
        ranks.on_first(lambda here=here, family=family, tied=tied: write_model(here, family, tied=tied) and None)
        micros = plan(random_rows(5), budget=50)
        alone = gradients_of(load_policy(here, ModelOptions(device="cpu", **options)), micros, ONE_RANK)
        policy = load_policy(here, ModelOptions(device="cpu", **options))
        assert len(policy.layers) == 2
        ranks.shard(policy.score, policy.layers)
        ours = gradients_of(policy, padded(micros, 2)[ranks.rank :: 2], ranks)
        metrics = {name: abs(ours[0][name] - value) / max(1e-3, abs(value)) for name, value in alone[0].items()}
        assert set(ours[0]) == set(alone[0])
        grads = {
            f"{name} {when}": relative(ours[2][index][name], grad)
            for index, when in enumerate(("before", "clipped"))
            for name, grad in alone[2][index].items()
        }
        found[family] = {
            "metrics": max(metrics.values()),
            "grads": max(grads.values()),
            "num_grads": len(ours[2][0]) / len(list(policy.model.named_parameters())),
            "norm": abs(ours[1] - alone[1]) / alone[1],
            "clipped": alone[1] > 0.01,
            "canary": max(
                abs(a - b)
                for a, b in zip(
                    canary_of(policy).logprobs,
                    canary_of(load_policy(here, ModelOptions(device="cpu"))).logprobs,
                    strict=True,
                )
            ),
        }
    return found


def train_on(ranks: Ranks, options: TrainConfig, source: Any, *, stop: Any = None) -> tuple[KeepingPublisher, Curve]:
    publisher, curve = KeepingPublisher(), Curve()
    stop = SharedStop(ranks, stop or threading.Event())
    first = ranks.rank == 0
    train(
        options,
        SharedSource(ranks, source if first else None),
        SharedPublisher(ranks, publisher if first else None),
        curve,
        stop,
        ranks,
    )
    return publisher, curve


def difference(
    ours: Mapping[int, Mapping[str, torch.Tensor]], theirs: Mapping[int, Mapping[str, torch.Tensor]]
) -> float:
    return max(
        float((ours[version][name] - tensor).abs().max())
        for version in ours
        for name, tensor in theirs[version].items()
    )


def curves_match(folder: Path, ranks: Ranks) -> Results:
    """Training on two ranks, and on one; then each goes on from a checkpoint of the other, and two from two."""
    base = folder / "model"
    ranks.on_first(lambda: write_model(base) and None)
    two, curve_two = train_on(ranks, config(folder / "two", base), ScriptedBatchSource(batches()))
    found: Results = {}

    def alone() -> dict[str, Any]:
        one, curve_one = train_on(ONE_RANK, config(folder / "one", base), ScriptedBatchSource(batches()))
        names = ("loss", "grad_norm", "lr", "trained_tokens", "unique_tokens")
        found["curve"] = max(
            abs(ours[name] - theirs[name]) / max(1e-3, abs(theirs[name]))
            for ours, theirs in zip(curve_two.steps, curve_one.steps, strict=True)
            for name in names
        )
        found["loss"] = [step["loss"] for step in curve_one.steps]
        found["weights"] = difference(two.weights, one.weights)
        resume = str(folder / "two/checkpoint-2")
        again, _ = train_on(ONE_RANK, config(folder / "two-one", base, resume=resume), ScriptedBatchSource(batches()))
        found["two_to_one"] = difference(again.weights, one.weights)
        found["two_to_one_steps"] = sorted(again.weights)
        return {"one": one.weights}

    ranks.on_first(lambda: found.update(alone()))
    one = found.pop("one", None)
    resume = str(folder / "one/checkpoint-2")
    again, _ = train_on(ranks, config(folder / "one-two", base, resume=resume), ScriptedBatchSource(batches()))
    resume = str(folder / "two/checkpoint-2")
    same, _ = train_on(ranks, config(folder / "two-two", base, resume=resume), ScriptedBatchSource(batches()))
    if ranks.rank == 0:
        found["one_to_two"] = difference(again.weights, one)
        found["two_to_two"] = difference(same.weights, two.weights)
        found["two_to_two_steps"] = sorted(same.weights)
        found["tops"] = sorted(path.name for path in (folder / "two/checkpoint-4").iterdir())
        found["others_published"] = 0
    else:
        found["others_published"] = len(two.publications)
    return found


class Slow(ScriptedBatchSource):
    """Waits before each batch, so that rank 0 has to say ``not yet``."""

    def next(self, progress: Progress) -> Batch | None:
        time.sleep(0.3)
        return super().next(progress)


class Missing(ScriptedBatchSource):
    def next(self, progress: Progress) -> Batch | None:
        if progress.step == 1:
            raise WaitTimeout("waited for groups that never came")
        return super().next(progress)


def waits_and_errors(folder: Path, ranks: Ranks) -> Results:
    base = folder / "model"
    found: Results = {}
    join.NOT_YET_SECONDS = 0.05
    _, curve = train_on(ranks, config(folder / "slow", base, total_steps=2), Slow(batches()))
    found["slow_steps"] = len(curve.steps)
    join.NOT_YET_SECONDS = 10.0

    found["timeout"] = error_of(lambda: train_on(ranks, config(folder / "missing", base), Missing(batches())))
    found["timeout_saved"] = (folder / "missing/checkpoint-1/COMPLETE").is_file()

    good, bad = batches()[:2]
    poison = bad[1].advantages_T.copy()
    poison[0] = float("inf")
    bad = (bad[0], dataclasses.replace(bad[1], advantages_T=poison), *bad[2:])
    found["refused"] = error_of(
        lambda: train_on(ranks, config(folder / "refused", base), ScriptedBatchSource([good, bad]))
    )
    found["replay"] = len(load_replay(folder / "refused/refused/step-2.npz")) - len(bad)

    source, stop = ScriptedBatchSource(batches()), threading.Event()
    source.ack = lambda batch: stop.set()  # type: ignore[method-assign]
    found["stopped"] = error_of(lambda: train_on(ranks, config(folder / "stopped", base), source, stop=stop))
    found["stopped_saved"] = sorted(path.name for path in (folder / "stopped").iterdir())

    def surprise() -> None:
        raise ValueError("nobody expected this")

    try:
        ranks.on_first(surprise)
    except (ValueError, AgentRLError) as error:
        found["surprise"] = f"{type(error).__name__}: {error}"

    only = config(
        folder / "only", base, total_steps=2, checkpoint=CheckpointOptions(save_steps=2, save_only_model=True)
    )
    train_on(ranks, only, ScriptedBatchSource(batches()))
    found["only_model"] = sorted(path.name for path in (folder / "only/checkpoint-2").iterdir())
    again = dataclasses.replace(only, resume="auto", total_steps=4)
    found["only_resumed"] = error_of(lambda: train_on(ranks, again, ScriptedBatchSource(batches())))
    return found


def error_of(work: Any) -> str:
    try:
        work()
    except AgentRLError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def main() -> None:
    folder = Path(sys.argv[1])
    launch = Launch.of(os.environ)
    with join.join_ranks(launch, device="cpu", stop=threading.Event(), on_failure=lambda error: 1) as ranks:
        found = {check.__name__: check(folder, ranks) for check in (gradients_match, curves_match, waits_and_errors)}
    (folder / f"rank-{launch.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
