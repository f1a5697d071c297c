"""The reward of a step: over all groups that ended since the last one, those without a training signal included.

Groups whose scores are all equal are never trained. A mean over trained rows would leave out just the tasks that the
policy always or never solves, so it would hardly move while the policy learns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentrl.store.blocking import BlockingStore
from agentrl.types import Record, RecordStatus, Split, TaskStatus

ENDED = {TaskStatus.COMPLETED, TaskStatus.ABANDONED}


class EndedGroups:
    """Walks over training groups by ``seq``, each counted once, when it is found to have ended.

    Looks no further than the highest ``seq`` that a step has taken, so its cost is that of the groups of the step.
    """

    def __init__(self, store: BlockingStore) -> None:
        self._store = store
        self._next_seq = 0
        self._waiting: list[int] = []

    def rewards(self, taken: Iterable[int]) -> list[float]:
        """Scores of the records of groups that have ended up to the highest of ``taken`` and were not counted yet."""
        highest = max(taken, default=self._next_seq - 1)
        candidates = [*self._waiting, *range(self._next_seq, highest + 1)]
        self._next_seq = max(self._next_seq, highest + 1)
        self._waiting = []
        scores: list[float] = []
        for seq in candidates:
            scores += self._scores(seq)
        return scores

    def _scores(self, seq: int) -> list[float]:
        scores: list[float] = []
        for task in self._store.call(self._store.store.find, "task", split=Split.TRAIN, seq=seq):
            if task.status in ENDED:
                records = self._store.call(self._store.store.find, "record", task=task.id)
                scores += newest_scores(records)
            else:
                self._waiting.append(seq)
        return scores

    def state(self) -> dict[str, Any]:
        return {"next_seq": self._next_seq, "waiting": self._waiting}

    def restore(self, saved: Mapping[str, Any]) -> None:
        self._next_seq = saved.get("next_seq", 0)
        self._waiting = list(saved.get("waiting", []))


def newest_scores(records: Iterable[Record]) -> list[float]:
    """Score of the newest scored attempt of each slot."""
    newest = {record.slot: record for record in sorted(records, key=lambda r: r.attempt) if usable(record)}
    return [record.score for record in newest.values() if record.score is not None]


def usable(record: Record) -> bool:
    return record.status == RecordStatus.SCORED and record.score is not None
