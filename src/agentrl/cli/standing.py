"""``Standing``: where a run stands, read from its store and its metrics: everything that ``agentrl status`` shows."""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from agentrl.cli.evaluation import evaluations
from agentrl.cli.feed import steps_of_groups
from agentrl.cli.feeder import PLANNED_GROUPS
from agentrl.cli.presence import RUN_END
from agentrl.config import Budget, RunConfig
from agentrl.config.budget import BUDGET_REACHED, read_limits
from agentrl.errors import ConfigError
from agentrl.store import QueueCounts, RunningGroup, Store
from agentrl.store.base import HEARTBEAT_SECONDS
from agentrl.store.registry import process_lives
from agentrl.types import InferenceService, ServiceStatus, Split, WeightVersion, Worker

logger = logging.getLogger(__name__)

LATE_SECONDS = 2.5 * HEARTBEAT_SECONDS
"""A beat older than this missed at least one."""
METRICS_TAIL_BYTES = 1 << 18
SHOWN_METRICS = ("reward", "staleness", "loss", "tokens_per_second")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One look at a run. ``end`` is how its last start ended, None while it goes on or when nobody could say."""

    run: str
    place: str
    at: float
    queues: Mapping[Split, QueueCounts]
    latest: WeightVersion | None
    groups: Sequence[RunningGroup]
    services: Sequence[InferenceService]
    workers: Sequence[Worker]
    end: Mapping[str, Any] | None
    spending: Mapping[str, float]
    streams_ended: bool
    last_step: Mapping[str, float]
    """Metrics of the newest step; empty where there are none."""
    evaluations: Sequence[Mapping[str, float]] = ()
    """Finished rounds of held-out tasks, oldest first: step, version, success, records, unscored."""
    planned_steps: int | None = None
    budget: Budget = field(default_factory=Budget)
    budget_reached: Mapping[str, Any] | None = None
    """used_up, action, at."""

    @property
    def state(self) -> str:
        """running, finished, interrupted, failed, crashed (processes are gone that never left), or idle."""
        if any(worker.alive for worker in self.workers):
            return "running"
        if self.end is not None:
            return self.end["outcome"]
        return "crashed" if self.workers else "idle"

    @property
    def reserve(self) -> int:
        """Groups that a trainer could take now."""
        return self.queues[Split.TRAIN].ready

    def alive(self, kind: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.kind == kind and worker.alive]

    def groups_of(self, worker: Worker) -> list[RunningGroup]:
        return [group for group in self.groups if group.owner == worker.id]

    def orphans(self) -> list[RunningGroup]:
        """Groups whose owner is gone: whoever samples next has them."""
        alive = {worker.id for worker in self.workers if worker.alive}
        return [group for group in self.groups if group.owner not in alive]


async def look(store: Store, *, place: str, folder: Path | None, config: RunConfig | None) -> Standing:
    queues = {split: await store.queue(split) for split in Split}
    return Standing(
        run=store.run,
        place=place,
        at=time.time(),
        queues=queues,
        latest=await store.latest_version(),
        groups=await store.running_groups(),
        services=await store.services(),
        workers=[judged(worker) for worker in await store.workers()],
        end=await store.get_state(RUN_END),
        spending=await store.spending(),
        streams_ended=await store.stream_ended(Split.TRAIN) and await store.stream_ended(Split.EVAL),
        last_step=last_step(folder / "metrics.jsonl") if folder is not None else {},
        evaluations=await evaluations(store),
        planned_steps=planned(config, queues[Split.TRAIN], await store.get_state(PLANNED_GROUPS)),
        budget=budget_of(config),
        budget_reached=await store.get_state(BUDGET_REACHED),
    )


def judged(worker: Worker) -> Worker:
    """A process of this host that is gone is dead at once; elsewhere only its silence tells."""
    here = worker.host == socket.gethostname() and worker.pid > 0
    return replace(worker, alive=False) if here and not process_lives(worker.pid) else worker


def planned(config: RunConfig | None, train: QueueCounts, groups: int | None) -> int | None:
    """Steps that ``max_steps``, the planned ``groups`` or, where nobody planned, the pushed ones give at most."""
    if config is None:
        return None
    pushed = train.unfinished + train.completed + sum(train.abandoned.values())
    return steps_of_groups(config, groups or pushed) or None


def budget_of(config: RunConfig | None) -> Budget:
    """Without the file of prices, which may be elsewhere, what needs no price."""
    try:
        return config.read_budget() if config is not None else Budget()
    except ConfigError as error:
        logger.warning("%s; money is left out", error)
        assert config is not None
        limits = {name: most for name, most in read_limits(config.spending.budget).items() if name != "money"}
        return Budget(limits=limits, action=config.spending.budget_action)


def last_step(path: Path) -> dict[str, float]:
    """The newest step event of ``metrics.jsonl``; a line that is being written is not read."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - METRICS_TAIL_BYTES))
        lines = file.read().split(b"\n")[:-1]
    for line in reversed(lines):
        if b'"step"' in line and line.startswith(b"{") and (event := json.loads(line)).get("kind") == "step":
            return {name: float(event[name]) for name in SHOWN_METRICS if name in event}
    return {}


# --- As it is told to programs ---------------------------------------------------------------------------------------


def service_state(standing: Standing, service: InferenceService) -> str:
    """UP, DRAINING or DOWN as registered, SILENT when one that is not DOWN was not heard of, or its process is gone."""
    if service.status is ServiceStatus.DOWN:
        return str(service.status)
    heard = service.age_seconds <= LATE_SECONDS and standing.state == "running"
    return str(service.status) if heard else "SILENT"


def worker_state(worker: Worker) -> str:
    """working, waiting, late (missed a heartbeat) or dead."""
    if not worker.alive:
        return "dead"
    if worker.age_seconds > LATE_SECONDS:
        return "late"
    return "waiting" if worker.waiting_for else "working"


def as_json(standing: Standing, waits: Sequence[str]) -> dict[str, Any]:
    """The keys that docs/status.md lists. Times are seconds since the epoch, ages are seconds."""
    latest = standing.latest
    return {
        "run": standing.run,
        "place": standing.place,
        "at": standing.at,
        "state": standing.state,
        "end": standing.end,
        "step": latest.step if latest else None,
        "version": latest.version if latest else None,
        "planned_steps": standing.planned_steps,
        "last_step": dict(standing.last_step),
        "evaluations": list(map(dict, standing.evaluations)),
        "streams_ended": standing.streams_ended,
        "queues": {str(split): asdict(counts) for split, counts in standing.queues.items()},
        "groups": [asdict(group) for group in standing.groups],
        "services": [asdict(service) | {"state": service_state(standing, service)} for service in standing.services],
        "workers": [
            asdict(worker) | {"state": worker_state(worker), "claims": len(standing.groups_of(worker))}
            for worker in standing.workers
        ],
        "waits": list(waits),
        "spending": dict(standing.spending),
        "money": money(standing),
        "budget": {
            "action": standing.budget.action,
            "limits": {
                name: {"limit": standing.budget.limits[name], "used": used}
                for name, used in standing.budget.used(standing.spending).items()
            },
            "reached": standing.budget_reached,
        },
    }


def money(standing: Standing) -> float | None:
    """What was spent, None without ``--prices``."""
    prices = standing.budget.prices
    return None if prices is None else prices.cost(standing.spending)
