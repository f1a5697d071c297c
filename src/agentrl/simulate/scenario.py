"""``Scenario``: a fleet, what its agents do, and the rules they are trained under."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentrl.simulate.workload import Workload
from agentrl.store.base import Admission, TakeRule


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """``tokens_per_second`` is that of one sequence among ``engine_slots``. ``target_concurrency`` 0: all slots."""

    engines: int = 8
    engine_slots: int = 64
    tokens_per_second: float = 50.0
    samplers: int = 1
    target_concurrency: int = 0
    max_episodes: int = 0

    @property
    def num_slots(self) -> int:
        return self.engines * self.engine_slots

    @property
    def requests_per_engine(self) -> int:
        return self.target_concurrency or self.engine_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Names and meaning are those of a run; ``sync_sampling`` is ``max_staleness`` 0, taken in order."""

    groups_per_step: int = 16
    num_generations: int = 8
    max_staleness: int = 1
    drop_staleness: int = 8
    sync_sampling: bool = False
    group_deadline: float = 300.0
    episode_timeout: float = 600.0

    def admission(self) -> Admission:
        staleness = 0 if self.sync_sampling else self.max_staleness
        return Admission(groups_per_step=self.groups_per_step, max_staleness=staleness)

    def take(self, step: int) -> TakeRule:
        return TakeRule(
            step=step,
            version=step - 1,
            num_groups=self.groups_per_step,
            drop_staleness=self.drop_staleness,
            in_order=self.sync_sampling,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``steps`` optimizer steps, of which the first ``warmup_steps`` are not measured.

    A step trains for ``train_seconds`` and publishes for ``publish_seconds``. ``num_tasks`` 0: as many as the steps may
    need.
    """

    fleet: SimulatedFleet = field(default_factory=SimulatedFleet)
    workload: Workload = field(default_factory=Workload)
    rules: Rules = field(default_factory=Rules)
    steps: int = 30
    warmup_steps: int = 5
    train_seconds: float = 10.0
    publish_seconds: float = 1.0
    num_tasks: int = 0

    @property
    def pushed_tasks(self) -> int:
        """Groups without signal are made up for by further ones, with some to spare."""
        if self.num_tasks:
            return self.num_tasks
        wanted = (self.steps + self.rules.max_staleness + 2) * self.rules.groups_per_step
        return round(wanted * 1.2 / (1.0 - self.workload.no_signal)) + 1
