"""The store: the only place where the processes of a run meet.

    add_tasks ─▶ claim ─▶ append_turn* ─▶ finish_record* ─▶ finalize_group ─▶ take ─▶ ack | drop
                  ▲ admission: published version      rows become ready ┘         └ again after a rewind

Every verb is one atomic, targeted update. Every write of a claim's owner carries its fencing token (``claim_no``) and
raises ``LeaseLost`` once a newer claim exists. One contract suite runs on every backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentrl.types import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    GroupVerdict,
    InferenceService,
    Record,
    RowStatus,
    Split,
    Task,
    WeightVersion,
    Worker,
)

LEASE_SECONDS = 30.0
HEARTBEAT_SECONDS = 5.0
MAX_ATTEMPTS = 3
SET_ASIDE = "budget"
"""Why groups are abandoned that no sampler has begun when the budget is used up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """How far sampling may run ahead: a training group starts only if
    ``seq < (published step + max_staleness + 1) * groups_per_step + abandoned + dropped - short``, where short are the
    places that steps left free.

    Where groups are trained ``max_trained_count`` times, ``retrained_interval`` steps apart, the steps that train no
    fresh group are left out: of every ``max_trained_count * retrained_interval`` steps the first ``retrained_interval``
    take fresh groups, the others take them again. Nothing is admitted before the first version is published.
    """

    groups_per_step: int
    max_staleness: int = 1
    max_trained_count: int = 1
    retrained_interval: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRule:
    """Which finished groups a step takes.

    ``version``/``step`` are the trainer's; ``in_order`` waits for the lowest ``seq`` (synchronous runs). Rows sampled
    more than ``drop_staleness`` steps ago, or by a version that is no ancestor of ``version``, are dropped, counted.

    A group is taken up to ``max_trained_count`` times, again when ``retrained_interval`` steps have passed since its
    last use, or when nothing else is left. Of all that may be taken the lowest ``seq`` goes first.

    ``max_refills`` bounds how many groups that ended with nothing to train are replaced for one step: once
    ``num_groups + max_refills`` have been played for it, the step is taken with the groups that are there, and left out
    when none is. None: it waits until it is full.
    """

    step: int
    version: int
    num_groups: int
    drop_staleness: int = 8
    in_order: bool = False
    max_trained_count: int = 1
    retrained_interval: int = 1
    max_refills: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Rows of one step in (seq, slot) order, and what was dropped on the way, by reason."""

    step: int
    rows: tuple[DBRecordData, ...]
    num_groups: int
    dropped: Mapping[str, int]
    lost: int = 0
    """Groups played for the step that ended with nothing to train; counted where ``max_refills`` bounds them."""
    short: int = 0
    """Groups that the step has fewer than asked for, by ``max_refills``."""
    left_out: int = 0
    """Groups of steps that were left out on the way to this one, because nothing had a signal."""
    end_of_stream: bool = False
    """No further group will come: ``rows`` may hold fewer groups than asked for, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Groups of one split by status, and those with training rows by what has become of the rows.

    ``completed`` = ``empty`` + ``ready`` + ``taken`` + ``trained`` + all ``dropped``.
    """

    created: int = 0
    running: int = 0
    completed: int = 0
    abandoned: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    empty: int = 0
    """Finished without a row to train: no signal, or held out."""
    ready: int = 0
    taken: int = 0
    trained: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By reason; a group of which some rows are left is not dropped."""
    pushed_again: int = 0
    """How often groups went stale and were pushed again."""
    fresh_taken: int = 0
    """Groups that steps took for the first time."""
    charged: int = 0
    """Groups with nothing to train that were counted to a step (``TakeRule.max_refills``)."""
    short: int = 0
    """Groups that steps had fewer than they asked for."""
    left_out: int = 0
    """Groups of steps that were left out."""

    @property
    def unfinished(self) -> int:
        return self.created + self.running

    @property
    def lost(self) -> int:
        """Groups that ended with nothing to train and are not counted to a step yet."""
        ended = sum(num for reason, num in self.abandoned.items() if reason != SET_ASIDE)
        return ended + self.empty - self.charged


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningGroup:
    """A group that is being played, or whose owner is gone; ``owner`` is empty when its lease was ended."""

    task: str
    split: Split
    owner: str
    num_slots: int
    num_done: int
    """Slots with a terminal record."""
    age_seconds: float
    """Since it was claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Of one task of the file, over all epochs: finished groups, their scored records, and the scores.

    A group that was played again, because it went stale or its lineage ended, counts once, as it was played last.
    """

    num_groups: int
    num_scored: int
    mean_score: float | None
    """Over scored records; None while there is none."""
    last_score: float | None
    """Mean of the last finished group that has a scored record."""


class Store(Protocol):
    """Async; safe for many processes. ``run`` is the namespace: no other run's rows are ever read or changed."""

    run: str

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def add_tasks(self, tasks: Sequence[Task]) -> int:
        """Push tasks, ``seq`` in the given order within each split; ids already there are left alone.

        Returns how many were new. Safe to call from several processes at once: each id is pushed once.
        """
        ...

    async def claim(self, worker: str, *, splits: Sequence[Split], admission: Admission | None = None) -> Claim | None:
        """Lease the next group to ``worker``: splits in the order given, lowest ``seq`` first.

        A group is free when it is ``created``, or ``running`` under a worker whose heartbeat is older than the lease.
        ``admission`` applies to the train split only. None when nothing may be claimed now.
        """
        ...

    async def append_turn(self, claim: Claim, turn: DispatchedSamplingTask) -> None: ...

    async def finish_record(self, claim: Claim, record: Record) -> None:
        """Store a terminal record. A late owner's record is kept as ``expired`` and ``LeaseLost`` is raised."""
        ...

    async def finalize_group(self, claim: Claim, verdict: GroupVerdict, rows: Sequence[DBRecordData]) -> bool:
        """Write verdict, task status and rows (``ready``) once; False when the group was finalised before."""
        ...

    async def set_aside(self, split: Split, reason: str) -> int:
        """Abandon, under ``reason``, every group of ``split`` that nobody has claimed. Returns how many."""
        ...

    async def take_back(self, split: Split, reason: str) -> int:
        """Groups abandoned under ``reason`` may be claimed again, under their old ``seq``. Returns how many."""
        ...

    async def release(self, claim: Claim) -> None:
        """Give a group back unfinished (shutdown); its next owner keeps the terminal records."""
        ...

    async def take(self, rule: TakeRule) -> Taken | None:
        """Mark rows ``taken`` for ``rule.step``; None while too few groups have finished.

        A group without rows (abandoned) never counts. Rows already taken for this step are returned again, so that a
        trainer that died between take and step gets the same batch.
        """
        ...

    async def ack(self, step: int) -> int:
        """taken(step) -> trained(step). Returns the number of rows."""
        ...

    async def drop(self, rows: Sequence[str], reason: str) -> int: ...

    async def rewind(self, step: int, version: int) -> Mapping[str, int]:
        """The trainer restored ``version`` at ``step``: rows of later steps become again what they were before, or are
        dropped when a version of theirs is no ancestor; groups dropped so run again under their old ``seq``.
        Returns counts."""
        ...

    async def publish_version(self, version: WeightVersion) -> None:
        """Put ``version`` in force. After a restore its old number is published again; a number that was published with
        another step, parent or tensor hash is refused. ``parent`` None then keeps the parent known."""
        ...

    async def latest_version(self) -> WeightVersion | None:
        """The version in force: the last published one, not the highest number."""
        ...

    async def next_version(self) -> int:
        """Highest version ever used in this run + 1 (0 for a new run)."""
        ...

    async def heartbeat(self, worker: Worker) -> None:
        """Keep the leases of ``worker``; to be called before its first claim. Another host or pid under the same id is
        a new process, which begins without the leases of the old one."""
        ...

    async def workers(self) -> list[Worker]: ...
    async def leave(self, worker: str) -> None: ...
    async def expire_dead_workers(self, host: str) -> list[str]:
        """Leases of workers of this host whose process is gone end at once. Returns their ids."""
        ...

    async def put_service(self, service: InferenceService) -> None: ...
    async def services(self) -> list[InferenceService]: ...

    async def set_state(self, key: str, value: Any) -> None: ...
    async def get_state(self, key: str) -> Any | None: ...
    async def keep_state(self, key: str, value: Any) -> Any:
        """Set ``key`` unless it is set; return what stands. Of several writers the first wins."""
        ...

    async def end_stream(self, split: Split) -> None:
        """No further tasks of this split will be pushed."""
        ...

    async def reopen_stream(self, split: Split) -> None:
        """Further tasks of this split may come: a run that ended goes on."""
        ...

    async def stream_ended(self, split: Split) -> bool:
        """Whether ``end_stream`` was called and no task was pushed since."""
        ...

    async def queue(self, split: Split) -> QueueCounts:
        """How many groups of ``split`` are where; as cheap in a long run as in a short one."""
        ...

    async def running_groups(self) -> list[RunningGroup]:
        """Groups of all splits that are being played, the one claimed first at first."""
        ...

    async def pass_rates(self) -> Mapping[str, PassRate]:
        """What finished groups of the train split say of each task of the file, by ``task_id``."""
        ...

    async def spend(self, amounts: Mapping[str, float]) -> None:
        """Add to the totals of the run. ``append_turn`` adds ``calls``, ``prompt_tokens`` (of a context that grows only
        what is new), ``sampled_tokens`` and ``calls/tool:NAME`` itself, once for each turn."""
        ...

    async def spending(self) -> Mapping[str, float]:
        """Totals since the run began, over all restarts."""
        ...

    async def find(self, kind: str, /, **where: Any) -> list[Any]:
        """Documents of ``kind`` (``task``, ``record``, ``turn``, ``row``, ``version``, ``worker``, ``service``) whose
        fields equal ``where``, in order of creation; ``task`` in ``seq`` order. A row is also found by its ``status``,
        ``step`` and ``reason``, which ``row_states`` shows."""
        ...

    async def count(self, kind: str, /, **where: Any) -> int: ...

    async def row_states(self, task: str | None = None) -> list[tuple[str, RowStatus, int | None, str]]:
        """(row id, status, step, reason) of every row of ``task``, or of the run, in order of creation."""
        ...

    async def verdict(self, task: str) -> GroupVerdict | None: ...
