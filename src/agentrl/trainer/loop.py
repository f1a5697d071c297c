"""``train``: the loop.

Consumes batches, waits for samplers to fill them, and unblocks samplers by each publication. Nothing in it knows what
an episode is; synchronous training is a staleness of 0, and colocation a publisher.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agentrl.algo import build_loss, effective_sample_size
from agentrl.config import AlgoOptions, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.errors import Interrupted, WaitTimeout
from agentrl.models.load import Policy, load_policy
from agentrl.parallel import ONE_RANK, Ranks
from agentrl.telemetry import StepRecord, Telemetry
from agentrl.trainer.batches import Batch, BatchSource
from agentrl.trainer.canary import canary_of
from agentrl.trainer.checkpoint import Checkpoints
from agentrl.trainer.guards import GapLimits, StepRefused, require_finite, require_gap
from agentrl.trainer.optim import build_optimizer, clip_gradients
from agentrl.trainer.progress import Progress
from agentrl.trainer.shared import Stop
from agentrl.trainer.step import forward_backward
from agentrl.weights.base import Publisher


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """``total_steps`` 0 trains until the stream of batches ends. ``gap_limits`` None allows any engine.

    Checkpoints, and the batch of a refused step, go to ``folder``.
    """

    folder: Path
    total_steps: int
    model: ModelOptions
    optim: OptimOptions
    algo: AlgoOptions
    checkpoint: CheckpointOptions
    resume: str = ""
    seed: int = 42
    gap_limits: GapLimits | None = field(default_factory=GapLimits)


def train(
    config: TrainConfig,
    batches: BatchSource,
    publisher: Publisher,
    log: Telemetry,
    stop: Stop | None = None,
    ranks: Ranks = ONE_RANK,
) -> Progress:
    """Optimize the policy, publishing the weights after each step: step, publish, save, ack.

    A version is one set of weights and never reused, so a resumed run publishes the version it restored before it asks
    for a batch. ``stop`` ends training after the step in progress: it is saved, and ``Interrupted`` raised. Every rank
    runs this function; ``batches``, ``publisher`` and ``stop`` are then shared ones.
    """
    torch.manual_seed(config.seed)
    stop = stop or threading.Event()
    policy = load_policy(config.model.model_name_or_path, config.model)
    ranks.shard(policy.score, policy.layers)
    optimizer, schedule = build_optimizer(policy.model, config.optim, total_steps=config.total_steps)
    loss_fn = build_loss(config.algo)
    checkpoints = Checkpoints(
        folder=config.folder,
        policy=policy,
        optimizer=optimizer,
        schedule=schedule,
        options=config.checkpoint,
        ranks=ranks,
    )
    progress = begin(config, policy, checkpoints, batches, publisher)
    saved_step = progress.step
    try:
        while steps_remain(config, progress) and not stop.is_set() and (batch := batches.next(progress)) is not None:
            with log.step(batch.step) as record:
                record.add(batch.metrics, lr=float(schedule.get_last_lr()[0]))
                with record.span("forward_backward"):
                    record.add(
                        forward_backward(policy, loss_fn, batch.microbatches, version=progress.version, ranks=ranks)
                    )
                with record.span("optimizer"):
                    record["grad_norm"] = clip_gradients(policy.model, config.optim.max_grad_norm)
                    require_sound(config, record, batch, ranks)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad(set_to_none=True)
                parent, progress = progress.version, Progress(step=batch.step, version=batches.next_version())
                with record.span("publish"):
                    publish(policy, progress, parent, batches, publisher)
                with record.span("save"):
                    saved_step = checkpoints.save_if_due(progress, batches.state()) or saved_step
                batches.ack(batch)
                add_rates(record)
    except (WaitTimeout, StepRefused):
        save_unless_saved(checkpoints, progress, saved_step, batches)
        raise
    save_unless_saved(checkpoints, progress, saved_step, batches)
    if stop.is_set() and steps_remain(config, progress):
        raise Interrupted(f"stopped after step {progress.step}; {checkpoints.way_on}")
    return progress


def begin(
    config: TrainConfig, policy: Policy, checkpoints: Checkpoints, batches: BatchSource, publisher: Publisher
) -> Progress:
    """Restore, publish what was restored, and undo what was done after it."""
    progress, saved = checkpoints.restore(config.resume) or (Progress(), {})
    batches.check(progress, resumed=bool(config.resume))
    checkpoints.set_aside_later(progress.step)
    publish(policy, progress, None, batches, publisher)
    batches.rewind(progress, saved)
    return progress


def publish(policy: Policy, progress: Progress, parent: int | None, batches: BatchSource, publisher: Publisher) -> None:
    """The engines first, then the ledger: samplers are admitted once the engines can serve them."""
    publication = publisher.publish(policy.tensors(), version=progress.version, canary=canary_of(policy))
    batches.published(publication, progress, parent)


def require_sound(config: TrainConfig, record: StepRecord, batch: Batch, ranks: Ranks) -> None:
    """Raise ``StepRefused`` before the weights change."""
    replay = config.folder / "refused" / f"step-{batch.step}.npz"
    planned = batch.planned or batch.microbatches
    require_finite(record, planned, replay, ranks)
    require_gap(record, config.gap_limits, planned, replay, ranks)


def save_unless_saved(checkpoints: Checkpoints, progress: Progress, saved_step: int, batches: BatchSource) -> None:
    """Training ends here: the weights are those of ``progress``, published and sound."""
    if progress.step != saved_step:
        checkpoints.save(progress, batches.state())


def steps_remain(config: TrainConfig, progress: Progress) -> bool:
    return config.total_steps <= 0 or progress.step < config.total_steps


def add_rates(record: StepRecord) -> None:
    """Tokens trained a second, the wait for the batch included, and the effective sample size of the ratios."""
    seconds = sum(value for name, value in record.values.items() if name.startswith("seconds/"))
    record["tokens_per_second"] = record["trained_tokens"] / seconds if seconds else 0.0
    sample_size = effective_sample_size(record.values)
    if sample_size is not None:
        record["ess"] = sample_size
