"""``Feed``: pushes the training groups of a run, at once or as they are chosen, and ends the stream.

It consumes what the store counts (groups created, finished, without signal), waits between two looks, and unblocks
samplers. Everything it decides follows from the store, so it may be killed and started again, and several of them
agree: each choice is kept in the store before its group is pushed, and the first to keep one wins.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from typing import TypeVar

from agentrl.cli.feed import placed
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.budget import BUDGET_REACHED
from agentrl.store import QueueCounts, Store
from agentrl.tasks.choice import NEVER, POLICIES, History, Position, Shown
from agentrl.types import Split, Task, TaskStatus

POLL_SECONDS = 0.2
PLANNED_GROUPS = "feed/planned_groups"
"""State key: groups that the steps of the run take, without those that replace others."""
CHOSEN = "feed/{position}"
"""State key: ``task_id`` of the group pushed at that place of the run."""

T = TypeVar("T")


class Feed:
    """The training tasks of one run, ``tasks`` being those of its file."""

    def __init__(self, store: Store, config: RunConfig, tasks: Sequence[Task]) -> None:
        self._store = store
        self._config = config
        self._tasks = tasks
        self._by_id = {task.task_id: task for task in tasks}
        self._num_pushed: Counter[str] = Counter()
        self._position = 0
        self._begun = False
        self._started_at = time.time()

    @property
    def planned(self) -> int:
        """Groups for the steps of the run; replacements come on top."""
        if not self._tasks:
            return 0
        if self._config.optim.max_steps > 0 and not self._pushes_at_once:
            return self._config.optim.max_steps * self._config.groups_per_step
        return len(self._tasks) * self._config.tasks.num_train_epochs

    @property
    def _pushes_at_once(self) -> bool:
        """Neither scores nor losses change what is sampled."""
        return self._choice_is_known and not self._config.algo.dynamic_sampling

    @property
    def _choice_is_known(self) -> bool:
        """The order depends on the seed alone, so nobody has to wait, ask or agree."""
        return self._config.tasks.task_sampling == "uniform"

    async def beside(self, work: Awaitable[T]) -> T:
        """The result of ``work``, during which groups are pushed; what breaks here ends it."""
        feeding, working = asyncio.ensure_future(self.run()), asyncio.ensure_future(work)
        try:
            await asyncio.wait({feeding, working}, return_when=asyncio.FIRST_COMPLETED)
            if feeding.done():
                feeding.result()
            return await working
        finally:
            feeding.cancel()
            working.cancel()
            await asyncio.gather(feeding, working, return_exceptions=True)

    async def run(self) -> None:
        """Until the stream has ended."""
        while not await self.tick():
            await asyncio.sleep(POLL_SECONDS)

    async def tick(self) -> bool:
        """Push what is due; True once nothing will follow, and the stream was ended."""
        await self._begin()
        await self._follow()
        counts = await self._store.queue(Split.TRAIN)
        wanted = wanted_groups(counts, self.planned, self._config.max_refills)
        if self._position < wanted and not await self._budget_ended_it():
            await self._push(self._num_due(counts, wanted))
            if not self._pushes_at_once:
                return False
        elif self._position >= wanted and not is_over(counts, self._config):
            return False
        await self._store.end_stream(Split.TRAIN)
        return True

    async def _begin(self) -> None:
        """Of groups pushed before, also by others, only the number by task matters; where the order is known, they are
        pushed again, which changes nothing."""
        if self._begun:
            return
        self._begun = True
        await self._store.set_state(PLANNED_GROUPS, self.planned)
        if not self._choice_is_known:
            pushed = await self._store.find("task", split=Split.TRAIN)
            self._num_pushed.update(task.task_id for task in pushed if task.task_id in self._by_id)
            self._position = self._num_pushed.total()

    def _num_due(self, counts: QueueCounts, wanted: int) -> int:
        """A choice is best made late: the groups of a step are kept ready, and no more. Synchronous sampling chooses
        when all earlier groups are finished, so that a choice does not depend on who was faster."""
        missing, groups = wanted - self._position, self._config.groups_per_step
        if self._choice_is_known:
            return missing
        if not self._config.pacing.sync_sampling:
            return min(missing, max(0, groups - counts.created))
        if counts.unfinished:
            return 0
        places = self._position - counts.lost - counts.charged + counts.short + counts.left_out
        return min(missing, groups - places % groups)

    async def _budget_ended_it(self) -> bool:
        """Since this feed began: an earlier start may have had less to spend."""
        reached = await self._store.get_state(BUDGET_REACHED)
        return reached is not None and reached["action"] == "stop" and reached["at"] >= self._started_at

    async def _follow(self) -> None:
        """Push what another feed, or an earlier start, has chosen and may not have pushed."""
        if self._choice_is_known:
            return
        chosen: list[Task] = []
        while kept := await self._store.get_state(CHOSEN.format(position=self._position + len(chosen))):
            chosen.append(self._known(kept))
        await self._add(chosen)

    async def _push(self, num_groups: int) -> None:
        places = range(self._position, self._position + num_groups)
        known = self._choice_is_known
        await self._add([self._choose({}, place) for place in places] if known else await self._agreed(places))

    async def _agreed(self, places: Sequence[int]) -> list[Task]:
        """A choice for each of ``places``, or what another feed has kept for it meanwhile.

        Chosen in a thread: of a hundred thousand tasks a choice takes a tenth of a second, in which episodes go on.
        """
        history = await self._history() if places else {}
        chosen: list[Task] = []
        for position in places:
            mine = await asyncio.to_thread(self._choose, history, position)
            kept = await self._store.keep_state(CHOSEN.format(position=position), mine.task_id)
            chosen.append(self._known(kept))
            before = history.get(kept, NEVER)
            history[kept] = replace(before, num_pushed=before.num_pushed + 1, unfinished=True)
        return chosen

    async def _add(self, chosen: Sequence[Task]) -> None:
        if chosen:
            await self._store.add_tasks([self._next_of(task) for task in chosen])
            self._position += len(chosen)

    def _choose(self, history: History, position: int) -> Task:
        place = Position(seed=self._config.run.seed, number=position)
        return POLICIES[self._config.tasks.task_sampling](self._tasks, place, history)

    def _known(self, task_id: str) -> Task:
        if task_id not in self._by_id:
            raise ConfigError(
                f"this run has chosen task {task_id} to be sampled next, and the file no longer has it",
                setting=f"--train_file {self._config.tasks.train_file}",
            )
        return self._by_id[task_id]

    def _next_of(self, task: Task) -> Task:
        """``epoch`` counts how often the task was pushed before."""
        epoch = self._num_pushed[task.task_id]
        self._num_pushed[task.task_id] += 1
        return placed(self._config, task, Split.TRAIN, epoch, self._config.rollout.num_generations)

    async def _history(self) -> dict[str, Shown]:
        rates = await self._store.pass_rates()
        waiting = await self._store.find("task", split=Split.TRAIN, status=TaskStatus.CREATED)
        playing = await self._store.find("task", split=Split.TRAIN, status=TaskStatus.RUNNING)
        unfinished = {task.task_id for task in [*waiting, *playing]}
        return {
            task_id: Shown(
                num_pushed=self._num_pushed[task_id],
                unfinished=task_id in unfinished,
                num_scored=rates[task_id].num_scored if task_id in rates else 0,
                mean_score=rates[task_id].mean_score if task_id in rates else None,
                last_score=rates[task_id].last_score if task_id in rates else None,
            )
            for task_id in self._by_id.keys() & (rates.keys() | self._num_pushed.keys())
        }


def wanted_groups(counts: QueueCounts, planned: int, max_refills: int | None) -> int:
    """Groups to be pushed as it stands: the planned ones, without the places that steps left free, and one for each
    group lost, as far as the step in hand may replace them."""
    if max_refills is None:
        return planned
    return planned - counts.short - counts.left_out + counts.charged + min(counts.lost, max_refills)


def is_over(counts: QueueCounts, config: RunConfig) -> bool:
    """No group will be replaced any more.

    With more losses than a step may replace, the trainer first has to take that step smaller, or leave it out, which
    counts them; unless too few groups are left for it to do so, and the stream ends with a smaller step.
    """
    refills = config.max_refills
    if refills is None:
        return True
    if counts.unfinished:
        return False
    return counts.lost <= refills or counts.ready + counts.lost < config.groups_per_step + refills
