"""What a simulation measured, and what the same fleet could do at most."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agentrl.simulate.fleet import SimulatedEngine
from agentrl.simulate.runner import Played
from agentrl.simulate.scenario import Scenario
from agentrl.store.base import QueueCounts, Taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of the measured steps; shares of groups are over the whole simulation.

    ``mean_staleness`` is that of trained tokens, in steps, ``max_staleness`` that of the oldest token of a row.
    ``length_bias`` compares the tokens of trained episodes with those of trained and lost ones (dropped as stale,
    abandoned, timed out): -0.02 is 2% too short. ``seconds_bias`` does so with the seconds an episode takes when it
    waits for nobody, ``lost_seconds_ratio`` are those of a lost episode by those of a trained one (0: none was lost).
    """

    steps: int
    seconds: float
    groups_per_second: float
    tokens_per_second: float
    utilisation: float
    trainer_busy: float
    mean_staleness: float
    max_staleness: int
    stale_share: float
    abandoned_share: float
    length_bias: float
    seconds_bias: float
    lost_seconds_ratio: float
    engine_bound: float
    """Groups a second if no slot were ever idle and every group were trained."""
    trainer_bound: float
    """Groups a second if the trainer never waited."""

    @property
    def of_ideal(self) -> float:
        """Throughput by the lower of both bounds."""
        return self.groups_per_second / min(self.engine_bound, self.trainer_bound)


class Gauge:
    """Reads engines and steps; ``step`` is called when a step's weights are published."""

    def __init__(self, scenario: Scenario, engines: Sequence[SimulatedEngine], played: dict[str, Played]) -> None:
        self._scenario = scenario
        self._engines = engines
        self._played = played
        self._begun = 0.0
        self._begun_busy = 0.0
        self._begun_tokens = 0
        self._waited = 0.0
        self._steps = 0
        self._groups = 0
        self._age_tokens = 0
        self._tokens = 0
        self._max_age = 0
        self._trained: list[Played] = []

    def begin(self, now: float) -> None:
        self._begun, self._begun_busy, self._begun_tokens = now, self._busy(), self._generated()

    def step(self, taken: Taken, waited: float, now: float) -> None:
        trained = [self._played.pop(row.id) for row in taken.rows]
        self._trained += trained
        if taken.step <= self._scenario.warmup_steps:
            self.begin(now)
            return
        self._steps += 1
        self._groups += taken.num_groups
        self._waited += waited
        for span in (span for each in trained for span in each.spans):
            num, age = span.end - span.start, taken.step - 1 - span.version
            self._age_tokens += num * age
            self._tokens += num
            self._max_age = max(self._max_age, age)

    def figures(self, queue: QueueCounts, lost_records: Iterable[str], now: float) -> Figures:
        """``lost_records`` ended and will not be trained."""
        seconds = now - self._begun
        lost = [self._played[record] for record in lost_records]
        every = [*self._trained, *lost]
        stale = queue.pushed_again + queue.dropped.get("stale", 0)
        abandoned = sum(queue.abandoned.values())
        all_groups = queue.completed + abandoned + queue.pushed_again
        slot_seconds = seconds * self._scenario.fleet.num_slots
        return Figures(
            steps=self._steps,
            seconds=seconds,
            groups_per_second=ratio(self._groups, seconds),
            tokens_per_second=ratio(self._generated() - self._begun_tokens, seconds),
            utilisation=ratio(self._busy() - self._begun_busy, slot_seconds),
            trainer_busy=1.0 - ratio(self._waited, seconds),
            mean_staleness=ratio(self._age_tokens, self._tokens),
            max_staleness=self._max_age,
            stale_share=ratio(stale, all_groups),
            abandoned_share=ratio(abandoned, all_groups),
            length_bias=ratio(self._mean_tokens(self._trained), self._mean_tokens(every), or_else=1.0) - 1.0,
            seconds_bias=ratio(self._mean_seconds(self._trained), self._mean_seconds(every), or_else=1.0) - 1.0,
            lost_seconds_ratio=ratio(self._mean_seconds(lost), self._mean_seconds(self._trained)),
            **bounds(self._scenario),
        )

    def _busy(self) -> float:
        for engine in self._engines:
            engine.note()
        return sum(engine.busy_seconds for engine in self._engines)

    def _generated(self) -> int:
        return sum(engine.num_generated for engine in self._engines)

    def _mean_tokens(self, played: Sequence[Played]) -> float:
        return ratio(sum(each.planned.num_tokens for each in played), len(played))

    def _mean_seconds(self, played: Sequence[Played]) -> float:
        rate = self._scenario.fleet.tokens_per_second
        seconds = sum(each.planned.num_tokens / rate + each.planned.tool_seconds for each in played)
        return ratio(seconds, len(played))


def bounds(scenario: Scenario) -> Mapping[str, float]:
    fleet, rules, workload = scenario.fleet, scenario.rules, scenario.workload
    tokens_per_group = rules.num_generations * workload.turns.mean * workload.turn_tokens.mean
    step_seconds = scenario.train_seconds + scenario.publish_seconds
    return {
        "engine_bound": fleet.num_slots * fleet.tokens_per_second / tokens_per_group * (1.0 - workload.no_signal),
        "trainer_bound": rules.groups_per_step / step_seconds if step_seconds else float("inf"),
    }


def ratio(part: float, whole: float, *, or_else: float = 0.0) -> float:
    return part / whole if whole else or_else
