"""Runs on simulated time: the same every time, within the store's rules, and faster where staleness is allowed."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from agentrl.simulate import Rules, Scenario, Simulated, SimulatedFleet, Workload, simulate
from agentrl.simulate.check import broken_rules
from agentrl.simulate.clock import StandstillError, run_simulated
from agentrl.simulate.distribution import Constant, LogNormal
from agentrl.simulate.journal import Asked, Claimed, Event
from agentrl.store import leases, steps

LONG_TAIL = Workload(turns=Constant(value=3), turn_tokens=Constant(value=100), tool_seconds=LogNormal(p50=1, p99=20))
SMALL = Scenario(
    fleet=SimulatedFleet(engines=2, engine_slots=16, samplers=2),
    workload=LONG_TAIL,
    rules=Rules(groups_per_step=4, num_generations=4),
    steps=16,
    warmup_steps=4,
    train_seconds=4.0,
    publish_seconds=0.5,
)
SYNC = replace(SMALL, rules=replace(SMALL.rules, sync_sampling=True))
STALE = replace(
    SMALL,
    rules=replace(SMALL.rules, drop_staleness=1),
    workload=replace(LONG_TAIL, tool_seconds=LogNormal(p50=1, p99=60), no_signal=0.2),
)


def digest(events: list[Event]) -> str:
    return hashlib.sha256(repr(events).encode()).hexdigest()


def trained_rows(simulated: Simulated) -> list[str]:
    return [row for event in simulated.events if isinstance(event, Asked) for row in event.rows]


# --- The clock -------------------------------------------------------------------------------------------------------


def test_hours_pass_in_no_time_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def wake(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, asyncio.get_running_loop().time()))

        async with asyncio.TaskGroup() as group:
            for name, seconds in (("c", 7200.0), ("a", 0.1), ("b", 3600.0)):
                group.create_task(wake(name, seconds))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(50):
                await asyncio.Event().wait()
        seen.append((await asyncio.to_thread(lambda: "thread"), asyncio.get_running_loop().time()))
        return seen

    assert run_simulated(main()) == [
        ("a", pytest.approx(0.1)),
        ("b", pytest.approx(3600)),
        ("c", pytest.approx(7200)),
        ("thread", pytest.approx(7250)),
    ]


def test_what_can_never_go_on_is_said_instead_of_waited_for() -> None:
    with pytest.raises(StandstillError, match="stands still"):
        run_simulated(asyncio.Event().wait())


# --- Simulations -----------------------------------------------------------------------------------------------------


def test_a_simulation_is_the_same_every_time_and_another_with_another_seed() -> None:
    first, again = simulate(SMALL), simulate(SMALL)
    assert digest(list(first.events)) == digest(list(again.events))
    assert first.figures == again.figures
    other = simulate(replace(SMALL, workload=replace(LONG_TAIL, seed=1)))
    assert digest(list(first.events)) != digest(list(other.events))


def test_a_simulation_is_the_same_in_processes_whose_hashes_differ() -> None:
    code = (
        "from test_simulate import SMALL, digest; from agentrl.simulate import simulate; "
        "print(digest(list(simulate(SMALL).events)))"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in (1, 2)
    ]
    assert printed[0] == printed[1] != ""


@pytest.mark.parametrize("seed", range(3))
def test_one_step_of_staleness_trains_the_same_fleet_twice_as_fast(seed: int) -> None:
    at_once = simulate(replace(SMALL, workload=replace(LONG_TAIL, seed=seed))).figures
    in_turn = simulate(replace(SYNC, workload=replace(LONG_TAIL, seed=seed))).figures
    assert in_turn.mean_staleness == in_turn.max_staleness == 0
    assert 0.5 < at_once.mean_staleness <= 1.1
    assert at_once.stale_share <= 0.03
    assert at_once.groups_per_second > 1.8 * in_turn.groups_per_second


@pytest.mark.parametrize("scenario", [SMALL, SYNC, STALE], ids=["async", "sync", "stale"])
def test_no_rule_of_the_store_is_broken(scenario: Scenario) -> None:
    simulated = simulate(scenario)
    assert broken_rules(simulated.events) == []
    assert simulated.figures.steps == scenario.steps - scenario.warmup_steps
    assert len(trained_rows(simulated)) == len(set(trained_rows(simulated)))
    assert simulated.figures.max_staleness <= scenario.rules.drop_staleness


def test_synchronous_steps_train_the_groups_in_the_order_of_the_file() -> None:
    asked = [event for event in simulate(SYNC).events if isinstance(event, Asked) and event.rows]
    groups = [sorted({int(row.split("/")[3].removeprefix("t")) for row in event.rows}) for event in asked]
    assert groups == [list(range(4 * step, 4 * step + 4)) for step in range(SYNC.steps)]


# --- Rules that are broken are seen ----------------------------------------------------------------------------------


def test_an_admission_one_group_too_wide_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "ADMITTED", leases.ADMITTED.replace("seq < ", "seq <= ", 1))
    assert any("was admitted" in sentence for sentence in broken_rules(simulate(SMALL).events))


def test_a_bound_on_staleness_one_step_too_wide_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "DROP_STALE", steps.DROP_STALE.replace(":step - 1 - ", ":step - 2 - "))
    assert any("took other rows" in sentence for sentence in broken_rules(simulate(STALE).events))


def test_a_group_that_is_given_out_twice_is_seen() -> None:
    events = list(simulate(SMALL).events)
    twice = next(index for index, event in enumerate(events) if isinstance(event, Claimed))
    assert broken_rules([*events[: twice + 1], *events[twice:]]) != []
