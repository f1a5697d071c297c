"""The store's rules a second time: a few dictionaries that follow a journal and say where it broke one.

Admission, the bound on staleness, lowest ``seq`` first, and nothing played or trained twice. It shares no code with the
store's statements, so that an error in one of them shows.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentrl.simulate.journal import Asked, Claimed, Event, Finalised, Published


def broken_rules(events: Sequence[Event]) -> list[str]:
    """One sentence for each; empty when all rules held. Groups have to be trained once each."""
    ledger = _Ledger()
    for event in events:
        match event:
            case Claimed():
                ledger.claimed(event)
            case Finalised():
                ledger.finalised(event)
            case Asked():
                ledger.asked(event)
            case Published():
                ledger.step_of[event.version] = ledger.step = event.step
    return ledger.broken


class _Ledger:
    def __init__(self) -> None:
        self.broken: list[str] = []
        self.step: int | None = None
        self.step_of: dict[int, int] = {}
        self.num_made_up = 0
        """Groups that leave nothing to train, each of which admits another."""
        self.running: dict[str, int] = {}
        self.seq: dict[str, int] = {}
        self.ready: dict[str, dict[str, int]] = {}
        """Versions by row, by group."""

    def claimed(self, event: Claimed) -> None:
        if event.task in self.running or event.task in self.ready:
            self._break(event, f"{event.task} was given out twice")
        self.running[event.task] = event.seq
        if event.admission is None:
            return
        if self.step is None:
            self._break(event, f"{event.task} was given out before the first weights")
            return
        ahead = self.step + event.admission.max_staleness + 1
        limit = ahead * event.admission.groups_per_step + self.num_made_up
        if event.seq >= limit:
            self._break(event, f"seq {event.seq} was admitted at step {self.step}; the limit is {limit}")

    def finalised(self, event: Finalised) -> None:
        self.running.pop(event.task, None)
        if event.versions:
            self.ready[event.task] = dict(event.versions)
            self.seq[event.task] = event.seq
        else:
            self.num_made_up += 1

    def asked(self, event: Asked) -> None:
        rule = event.rule
        self._drop_stale(rule.step - 1 - rule.drop_staleness)
        lowest = sorted(self.ready, key=self.seq.__getitem__)[: rule.num_groups]
        first_running = min(self.running.values(), default=None)
        if rule.in_order and first_running is not None:
            lowest = [task for task in lowest if self.seq[task] < first_running]
        if not event.rows:
            if len(lowest) == rule.num_groups:
                self._break(event, f"step {rule.step} was refused {rule.num_groups} groups that are ready")
            return
        expected = [row for task in lowest for row in sorted(self.ready[task])]
        if sorted(event.rows) != sorted(expected):
            self._break(event, f"step {rule.step} took other rows than the lowest that are ready and young enough")
        for row in event.rows:
            self.ready.pop(row.rsplit("/", 2)[0], None)

    def _drop_stale(self, oldest_step: int) -> None:
        for task, rows in list(self.ready.items()):
            live = {row: version for row, version in rows.items() if self.step_of[version] >= oldest_step}
            self.ready[task] = live
            if not live:
                del self.ready[task]
                self.num_made_up += 1

    def _break(self, event: Event, what: str) -> None:
        self.broken.append(f"at {event.at:.3f} s: {what}")
