"""``BudgetGuard``: asked before claims whether the budget of the run allows a further group.

What was used are the totals of the ledger, over all samplers, evaluations and restarts. At a limit ``stop`` sets the
training groups that nobody has begun aside, which ends their stream: what is under way is finished and trained, and
held-out groups are played. ``pause`` ends the sampler when its groups are finished, ``warn`` only tells.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from agentrl.config import Budget
from agentrl.config.budget import BUDGET_REACHED
from agentrl.store.base import SET_ASIDE, Store
from agentrl.types import Split

BUDGET_EVENT = "budget"
"""Kind of the event that says what is used up: text."""


class BudgetGuard:
    """Of one sampler. ``tell`` hears once what is used up and what follows from it."""

    def __init__(self, store: Store, budget: Budget, *, tell: Callable[[str], None] = lambda text: None) -> None:
        self._store = store
        self._budget = budget
        self._tell = tell
        self.used_up = ""

    @property
    def paused(self) -> bool:
        return bool(self.used_up) and self._budget.action == "pause"

    @property
    def awaits(self) -> str:
        """What is left to a sampler without a group once the budget has ended the training groups."""
        stopped = self.used_up and self._budget.action == "stop"
        return f"held-out tasks: the budget is used up ({self.used_up})" if stopped else ""

    async def begin(self) -> None:
        """A start with more to spend, or one that only warns, goes on with what an earlier one set aside."""
        if self._budget.action == "warn" or not await self._look():
            await give_back_set_aside(self._store)

    async def may_claim(self) -> bool:
        """False for good once the run pauses. When sampling stops, only begun groups are left: those of a sampler that
        died may be claimed, and finished."""
        used_up = await self._look()
        if used_up:
            await self._reach(used_up)
        return not self.paused

    async def _look(self) -> str:
        return self._budget.used_up(await self._store.spending()) if self._budget.limits else ""

    async def _reach(self, used_up: str) -> None:
        first, self.used_up = not self.used_up, used_up
        if first and await self._store.get_state(BUDGET_REACHED) is None:
            told = {"used_up": used_up, "action": self._budget.action, "at": time.time()}
            await self._store.set_state(BUDGET_REACHED, told)
            self._tell(what_follows(used_up, self._budget.action))
        if self._budget.action == "stop" and (await self._store.queue(Split.TRAIN)).created:
            await self._store.set_aside(Split.TRAIN, SET_ASIDE)


async def give_back_set_aside(store: Store) -> None:
    """As if no limit had been reached; whoever samples finds out anew."""
    if await store.get_state(BUDGET_REACHED) is not None:
        await store.take_back(Split.TRAIN, SET_ASIDE)
        await store.set_state(BUDGET_REACHED, None)


def what_follows(used_up: str, action: str) -> str:
    follows = {
        "stop": "no further training group is begun; those under way are finished and trained",
        "pause": "the run ends when the groups under way are finished",
        "warn": "the run goes on (--budget_action warn)",
    }
    return f"the budget is used up ({used_up}): {follows[action]}"


def way_on(used_up: str) -> str:
    return f"the budget is used up ({used_up}): go on with a higher --budget and --resume_from_checkpoint auto"
