"""A sampler at the limit of its budget: what it still plays, what it says, and how a later start goes on."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rollout_help import Model, World, a_task, answer, in_world

from agentrl.config import Budget
from agentrl.config.budget import BUDGET_REACHED
from agentrl.rollout.budget import BudgetGuard
from agentrl.types import Split, TaskStatus

THREE_CALLS = {"calls": 3.0}
"""Reached in the second group of two episodes of one call each."""


def right_and_wrong() -> Model:
    return Model({0: [answer("3")], 1: [answer("4")]})


def tasks(number: int) -> list[Any]:
    return [a_task(f"t{n}", num_slots=2) for n in range(number)]


def guarded(world: World, told: list[str] | None = None, **budget: Any) -> Any:
    """A sampler that plays one group after the other."""
    tell: Callable[[str], None] = (told if told is not None else []).append
    return world.sampler(num_episodes=2, budget=BudgetGuard(world.store, Budget(**budget), tell=tell))


async def found(world: World, split: Split = Split.TRAIN) -> list[tuple[TaskStatus, str]]:
    return [(task.status, task.reason) for task in await world.store.find("task", split=split)]


DONE, LEFT, ASIDE = (TaskStatus.COMPLETED, ""), (TaskStatus.CREATED, ""), (TaskStatus.ABANDONED, "budget")


def test_at_the_limit_stop_ends_the_training_groups_and_held_out_ones_are_played(tmp_path: Path) -> None:
    told: list[str] = []

    async def scenario(world: World) -> None:
        await world.push(tasks(5))
        await world.store.reopen_stream(Split.EVAL)
        running = asyncio.create_task(guarded(world, told, limits=THREE_CALLS).run())
        while not told:
            await asyncio.sleep(0.01)
        await world.store.add_tasks([a_task("e", num_slots=1, split=Split.EVAL)])
        await world.store.end_stream(Split.EVAL)
        await running
        assert await found(world) == [DONE, DONE, ASIDE, ASIDE, ASIDE]
        assert await found(world, Split.EVAL) == [DONE]
        assert (await world.store.spending())["calls"] == 5
        reached = await world.store.get_state(BUDGET_REACHED)
        assert (reached["used_up"], reached["action"]) == ("4 of 3 model calls", "stop")

    in_world(tmp_path, scenario, right_and_wrong())
    assert told == [
        "the budget is used up (4 of 3 model calls): no further training group is begun; those under way are finished "
        "and trained"
    ]


def test_what_was_spent_before_a_restart_counts_and_more_to_spend_goes_on(tmp_path: Path) -> None:
    told: list[str] = []

    async def scenario(world: World) -> None:
        await world.push(tasks(5))
        await guarded(world, told, limits=THREE_CALLS).run()
        assert await found(world) == [DONE, DONE, ASIDE, ASIDE, ASIDE]
        await guarded(world, told, limits=THREE_CALLS).run()
        assert await found(world) == [DONE, DONE, ASIDE, ASIDE, ASIDE]
        await guarded(world, told, limits={"calls": 7.0}).run()
        assert await found(world) == [DONE, DONE, DONE, DONE, ASIDE]
        await guarded(world, told).run()
        assert await found(world) == [DONE] * 5
        assert await world.store.get_state(BUDGET_REACHED) is None

    in_world(tmp_path, scenario, right_and_wrong())
    assert ["8 of 7" in text for text in told] == [False, True]


def test_pause_leaves_the_groups_where_they_are_and_ends_the_sampler(tmp_path: Path) -> None:
    told: list[str] = []

    async def scenario(world: World) -> None:
        await world.push([*tasks(5)])
        sampler = guarded(world, told, limits=THREE_CALLS, action="pause")
        await sampler.run()
        assert sampler.budget.paused
        assert await found(world) == [DONE, DONE, LEFT, LEFT, LEFT]
        again = guarded(world, limits={"calls": 100.0}, action="pause")
        await again.run()
        assert not again.budget.paused
        assert await found(world) == [DONE] * 5

    in_world(tmp_path, scenario, right_and_wrong())
    assert told == ["the budget is used up (4 of 3 model calls): the run ends when the groups under way are finished"]


def test_warn_says_so_once_and_goes_on(tmp_path: Path) -> None:
    told: list[str] = []

    async def scenario(world: World) -> None:
        await world.push(tasks(5))
        await guarded(world, told, limits=THREE_CALLS, action="warn").run()
        assert await found(world) == [DONE] * 5

    in_world(tmp_path, scenario, right_and_wrong())
    assert told == ["the budget is used up (4 of 3 model calls): the run goes on (--budget_action warn)"]


@pytest.mark.parametrize("limits", [{}, {"calls": 1000.0}])
def test_within_its_budget_nothing_is_said_or_left_out(tmp_path: Path, limits: dict[str, float]) -> None:
    told: list[str] = []

    async def scenario(world: World) -> None:
        await world.push(tasks(5))
        await guarded(world, told, limits=limits).run()
        assert await found(world) == [DONE] * 5

    in_world(tmp_path, scenario, right_and_wrong())
    assert told == []


def test_a_group_that_a_dead_sampler_had_begun_is_finished_though_the_budget_is_used_up(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        await world.push(tasks(3))
        assert await world.store.claim("dead", splits=(Split.TRAIN,))
        await world.store.leave("dead")
        await world.store.spend({"calls": 3})
        sampler = guarded(world, limits=THREE_CALLS)
        await sampler.run()
        assert await found(world) == [DONE, ASIDE, ASIDE]

    in_world(tmp_path, scenario, right_and_wrong())


def test_an_idle_sampler_says_that_the_budget_is_used_up(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        guard = BudgetGuard(world.store, Budget(limits=THREE_CALLS))
        assert guard.awaits == ""
        await world.store.spend({"calls": 3})
        assert await guard.may_claim()
        assert guard.awaits == "held-out tasks: the budget is used up (3 of 3 model calls)"

    in_world(tmp_path, scenario, right_and_wrong())
