"""``StoreBatchSource``: the store's finished groups as batches, and the trainer's side of the ledger.

Consumes ready rows, waits for samplers to finish groups, and is unblocked by them; every publication lets samplers
start new groups.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agentrl.batch.plan import StepPlan, plan_step
from agentrl.config import AlgoOptions, Budget, OptimOptions
from agentrl.config.budget import BUDGET_REACHED
from agentrl.errors import ConfigError, WaitTimeout
from agentrl.store.base import HEARTBEAT_SECONDS, Taken, TakeRule
from agentrl.store.blocking import BlockingStore
from agentrl.trainer.batches import Batch
from agentrl.trainer.progress import Progress
from agentrl.trainer.rewards import EndedGroups
from agentrl.trainer.samplers import SamplersSeen
from agentrl.types import TaskStatus, WeightVersion, Worker
from agentrl.weights.base import Publication

logger = logging.getLogger(__name__)

FIRST_POLL_SECONDS, LAST_POLL_SECONDS, POLL_GROWTH = 0.02, 0.2, 1.3
RESERVED_VERSION = "trainer/reserved_version"
"""State key: the highest number given to weights, published or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How many groups make a step, and how long to wait for them. ``in_order`` is synchronous sampling."""

    groups_per_step: int
    num_ranks: int = 1
    algo: AlgoOptions
    optim: OptimOptions
    max_tokens_per_microbatch: int
    drop_staleness: int = 8
    in_order: bool = False
    max_trained_count: int = 1
    retrained_interval: int = 1
    max_refills: int | None = None
    budget: Budget = field(default_factory=Budget)
    wait_timeout_seconds: float = 600.0
    sampler_timeout_seconds: float = 30.0


class StoreBatchSource:
    """A ``BatchSource`` over a store that is open; ``close`` ends the heartbeat and leaves the store open.

    ``stop`` makes ``next`` return None within a poll.
    """

    def __init__(self, store: BlockingStore, options: SourceOptions, *, stop: threading.Event | None = None) -> None:
        self._store = store
        self._options = options
        self._stop = stop or threading.Event()
        self._ended = EndedGroups(store)
        self._samplers = SamplersSeen(store)
        self._step_of_version: dict[int, int] = {}
        host = socket.gethostname()
        self._worker = Worker(id=f"trainer/{host}/{os.getpid()}", kind="trainer", host=host, pid=os.getpid())
        self._end_heartbeat = store.every(HEARTBEAT_SECONDS, self._beat)

    # --- Where training stands ---------------------------------------------------------------------------------------

    def check(self, progress: Progress, *, resumed: bool) -> None:
        latest = self._store.call(self._store.store.latest_version)
        known = self._store.call(self._store.store.find, "version", version=progress.version)
        if not resumed and latest is not None and latest.step > 0:
            raise ConfigError(
                f"run {self._store.store.run} has trained to step {latest.step} already: go on with "
                "--resume_from_checkpoint auto, or give another --run_name",
                setting="--run_name",
            )
        if progress.step > 0 and not known:
            raise ConfigError(
                f"the checkpoint stands at step {progress.step}, version {progress.version}, which run "
                f"{self._store.store.run} never published: it is of another run. To start from its weights, give its "
                "folder as --model_name_or_path",
                setting="--resume_from_checkpoint",
            )

    def rewind(self, progress: Progress, saved: Mapping[str, Any]) -> None:
        versions = self._store.call(self._store.store.find, "version")
        self._step_of_version = {version.version: version.step for version in versions}
        counts = self._store.call(self._store.store.rewind, progress.step, progress.version)
        self._ended.restore(saved.get("ended_groups", {}))
        if any(counts.values()):
            logger.info("went back to step %d, version %d: %s", progress.step, progress.version, dict(counts))

    def next_version(self) -> int:
        """Kept in the store before any engine hears of the number: an engine may sample under a version whose
        publication a crash kept from being registered."""
        store = self._store.store
        reserved = self._store.call(store.get_state, RESERVED_VERSION)
        version = max(self._store.call(store.next_version), -1 if reserved is None else int(reserved) + 1)
        self._store.call(store.set_state, RESERVED_VERSION, version)
        return version

    def published(self, publication: Publication, progress: Progress, parent: int | None) -> None:
        known = self._store.call(self._store.store.find, "version", version=progress.version)
        version = WeightVersion(
            version=progress.version,
            step=progress.step,
            parent=known[0].parent if known else parent,
            incarnation=self._worker.id,
            tensor_hash=publication.tensor_hash,
            engines=tuple(confirmation.url for confirmation in publication.confirmations),
            canary_difference=publication.canary_difference,
        )
        self._store.call(self._store.store.publish_version, version)
        self._step_of_version[version.version] = version.step

    def state(self) -> dict[str, Any]:
        return {"ended_groups": self._ended.state()}

    # --- Batches -----------------------------------------------------------------------------------------------------

    def next(self, progress: Progress) -> Batch | None:
        """Raise ``WaitTimeout`` after ``wait_timeout_seconds`` without a batch; the message says what is missing."""
        begun = time.monotonic()
        while (taken := self._wait_for_rows(progress, deadline=begun + self._options.wait_timeout_seconds)) is not None:
            plan = self._plan(taken, progress)
            if plan.microbatches:
                self._tell_shortage(taken)
                return self._batch(taken, plan, waited_seconds=time.monotonic() - begun)
            self._drop_untrainable(taken)
        return None

    def ack(self, batch: Batch) -> None:
        self._store.call(self._store.store.ack, batch.step)

    def close(self) -> None:
        self._end_heartbeat()
        self._store.call(self._store.store.leave, self._worker.id)

    def _wait_for_rows(self, progress: Progress, *, deadline: float) -> Taken | None:
        """Rows of the next step; None at the end of the stream or when asked to stop."""
        rule = TakeRule(
            step=progress.step + 1,
            version=progress.version,
            num_groups=self._options.groups_per_step,
            drop_staleness=self._options.drop_staleness,
            in_order=self._options.in_order,
            max_trained_count=self._options.max_trained_count,
            retrained_interval=self._options.retrained_interval,
            max_refills=self._options.max_refills,
        )
        pause = FIRST_POLL_SECONDS
        order = ", in order" if rule.in_order else ""
        awaited = f"samplers to finish {rule.num_groups} groups for step {rule.step}{order}"
        self.waits_for(awaited, deadline - time.monotonic())
        try:
            while not self._stop.is_set():
                taken = self._store.call(self._store.store.take, rule)
                if taken is not None:
                    return taken if taken.rows or not taken.end_of_stream else None
                if time.monotonic() > deadline:
                    raise WaitTimeout(self._what_is_missing(rule))
                self._samplers.require_one(rule, within_seconds=self._options.sampler_timeout_seconds)
                if self._samplers.all_left and self._budget_pauses():
                    self._stop.set()
                self._stop.wait(pause)
                pause = min(pause * POLL_GROWTH, LAST_POLL_SECONDS)
            return None
        finally:
            self.waits_for("", None)

    def _budget_pauses(self) -> bool:
        """The samplers ended because of it, so nothing more will come."""
        reached = self._store.call(self._store.store.get_state, BUDGET_REACHED)
        if reached is None or reached["action"] != "pause":
            return False
        logger.warning("the samplers have ended: the budget is used up (%s)", reached["used_up"])
        return True

    def _plan(self, taken: Taken, progress: Progress) -> StepPlan:
        return plan_step(
            taken.rows,
            options=self._options.algo,
            optim=self._options.optim,
            step_of_version=self._step_of_version.__getitem__,
            step=progress.step,
            max_tokens_per_microbatch=self._options.max_tokens_per_microbatch,
            num_ranks=self._options.num_ranks,
        )

    def _drop_untrainable(self, taken: Taken) -> None:
        dropped = self._store.call(self._store.store.drop, [row.id for row in taken.rows], "nothing_to_train")
        logger.warning("step %d: %d rows have no token to train (see over_long) and are dropped", taken.step, dropped)

    def _tell_shortage(self, taken: Taken) -> None:
        """A step that is smaller, and those that were left out before it, are said."""
        if taken.left_out:
            logger.warning("%d groups of steps before step %d: none had a signal", taken.left_out, taken.step)
        if taken.short:
            logger.warning(
                "step %d is trained with %d groups, %d fewer: %d had no signal, and up to %d of a step are replaced "
                "(--dynamic_sampling_limit)",
                *(taken.step, taken.num_groups, taken.short, taken.lost, self._options.max_refills),
            )

    def _batch(self, taken: Taken, plan: StepPlan, *, waited_seconds: float) -> Batch:
        values = {name: metric.result for name, metric in plan.metrics.items()}
        values["seconds/wait_batch"] = waited_seconds
        values["staleness"] = values.get("batch/age", 0.0)
        values["staleness_max"] = values.get("batch/max_age", 0.0)
        values["groups"] = float(taken.num_groups)
        if self._options.max_trained_count > 1:
            values["groups_again"] = float(len({row.task for row in taken.rows if row.trained_count}))
        if self._options.max_refills is not None:
            values |= {
                "groups_without_signal": float(taken.lost),
                "groups_short": float(taken.short),
                "groups_left_out": float(taken.left_out),
            }
        values |= {f"dropped/{reason}": float(count) for reason, count in taken.dropped.items()}
        values |= self._spent()
        rewards = self._ended.rewards([row.seq for row in taken.rows])
        if rewards:
            values["reward"] = sum(rewards) / len(rewards)
            values["reward_records"] = float(len(rewards))
        return Batch(step=taken.step, microbatches=plan.microbatches, metrics=values)

    def _spent(self) -> dict[str, float]:
        """Of the whole run until now; ``budget/NAME`` is the used part of a limit."""
        totals, budget = self._store.call(self._store.store.spending), self._options.budget
        spent = {f"spent/{name}": amount for name, amount in totals.items()}
        if budget.prices is not None:
            spent["spent/money"] = budget.prices.cost(totals)
        return spent | {f"budget/{name}": used / budget.limits[name] for name, used in budget.used(totals).items()}

    # --- Heartbeat and waiting ---------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        await self._store.store.heartbeat(self._worker)

    def waits_for(self, what: str, seconds: float | None) -> None:
        """Shown to others from the next heartbeat on; ``seconds`` until the trainer gives up."""
        deadline = None if seconds is None else time.time() + seconds
        self._worker = replace(self._worker, waiting_for=what, deadline=deadline)

    def _what_is_missing(self, rule: TakeRule) -> str:
        store = self._store.store
        counts = {
            status: self._store.call(store.count, "task", split="train", status=status)
            for status in (TaskStatus.COMPLETED, TaskStatus.ABANDONED, TaskStatus.RUNNING, TaskStatus.CREATED)
        }
        ready = self._store.call(store.count, "row", status="ready")
        groups = ", ".join(f"{count} {status}" for status, count in counts.items())
        order = " (in order: the lowest unfinished group holds back later ones)" if self._options.in_order else ""
        return (
            f"waited {self._options.wait_timeout_seconds:g} s for {rule.num_groups} finished groups of step "
            f"{rule.step}{order}. Training groups: {groups}; {ready} rows are ready. {self._who_samples()} "
            "(--wait_timeout sets the limit)"
        )

    def _who_samples(self) -> str:
        workers = self._store.call(self._store.store.workers)
        samplers = [worker for worker in workers if worker.kind == "sampler"]
        if not samplers:
            return "No sampler ever started: run `agentrl sample` on this store."
        seen = "; ".join(
            f"{worker.id} {'beat' if worker.alive else 'is dead, beat last'} {worker.age_seconds:.0f} s ago"
            + (f", waits for {worker.waiting_for}" if worker.waiting_for else "")
            for worker in samplers
        )
        return f"Samplers: {seen}."
