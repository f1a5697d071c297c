"""What the store of a simulation was asked and answered, in order: the trace that is compared and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.store.base import Admission, Taken, TakeRule
from agentrl.store.inline import InlineStore
from agentrl.types import Claim, DBRecordData, GroupVerdict, Split, WeightVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    at: float
    task: str
    seq: int
    admission: Admission | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalised:
    """``versions``: of each row by id, the lowest version that sampled a token of it."""

    at: float
    task: str
    seq: int
    reason: str
    versions: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call of ``take``; ``rows`` is empty where too few groups had finished."""

    at: float
    rule: TakeRule
    rows: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    at: float
    version: int
    step: int


Event = Claimed | Finalised | Asked | Published


class JournalStore(InlineStore):
    """``InlineStore`` that keeps an ``Event`` of every claim, verdict, take and publication that was not refused."""

    def __init__(self, *, run: str, clock: Callable[[], float], **rules: Any) -> None:
        super().__init__(run=run, clock=clock, **rules)
        self.events: list[Event] = []

    async def claim(self, worker: str, *, splits: Sequence[Split], admission: Admission | None = None) -> Claim | None:
        claim = await super().claim(worker, splits=splits, admission=admission)
        if claim is not None:
            task = claim.task
            self.events.append(Claimed(at=self._clock(), task=task.id, seq=task.seq, admission=admission))
        return claim

    async def finalize_group(self, claim: Claim, verdict: GroupVerdict, rows: Sequence[DBRecordData]) -> bool:
        first = await super().finalize_group(claim, verdict, rows)
        versions = {row.id: row.start_version for row in rows}
        self.events.append(
            Finalised(
                at=self._clock(), task=claim.task.id, seq=claim.task.seq, reason=verdict.reason, versions=versions
            )
        )
        return first

    async def take(self, rule: TakeRule) -> Taken | None:
        taken = await super().take(rule)
        rows = tuple(row.id for row in taken.rows) if taken else ()
        self.events.append(Asked(at=self._clock(), rule=rule, rows=rows))
        return taken

    async def publish_version(self, version: WeightVersion) -> None:
        await super().publish_version(version)
        self.events.append(Published(at=self._clock(), version=version.version, step=version.step))
