"""Which task comes next: by seed and position alone, by what a group promises, by weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from agentrl.errors import ConfigError
from agentrl.tasks.choice import POLICIES, Position, Shown, promise, weight_of
from agentrl.types import Task


def tasks(count: int, **weights: Any) -> list[Task]:
    names = [f"q{number}" for number in range(count)]
    given = [{"weight": weights[name]} if name in weights else {} for name in names]
    return [Task(task_id=name, query="?", metadata=metadata) for name, metadata in zip(names, given, strict=True)]


def chosen(policy: str, among: list[Task], num: int, history: Mapping[str, Shown], seed: int = 1) -> list[str]:
    """Each at its position, under one and the same history."""
    pick = POLICIES[policy]
    return [pick(among, Position(seed=seed, number=number), history).task_id for number in range(num)]


def pushed_on(policy: str, among: list[Task], num: int) -> list[str]:
    """Each choice is known to the next."""
    counts: Counter[str] = Counter()
    order = []
    for number in range(num):
        history = {name: Shown(num_pushed=count) for name, count in counts.items()}
        order.append(POLICIES[policy](among, Position(seed=1, number=number), history).task_id)
        counts[order[-1]] += 1
    return order


def scored(rate: float, num: int = 16, **fields: Any) -> Shown:
    return Shown(num_pushed=1, num_scored=num, mean_score=rate, last_score=rate, **fields)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_choice_depends_on_seed_position_and_history_and_on_nothing_else(policy: str) -> None:
    among, history = tasks(9), {"q1": scored(0.5), "q2": scored(1.0)}
    first = chosen(policy, among, 40, history)
    assert first == chosen(policy, among, 40, history)
    assert first != chosen(policy, among, 40, history, seed=2)


def test_uniform_gives_every_task_once_an_epoch_in_an_order_of_its_own() -> None:
    order = chosen("uniform", tasks(10), 30, {})
    epochs = [order[:10], order[10:20], order[20:]]
    assert all(len(set(epoch)) == 10 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


def test_difficulty_prefers_pass_rates_near_one_half_and_explores() -> None:
    among = tasks(6)
    history = {"q0": scored(0.5), "q1": scored(0.9), "q2": scored(1.0), "q3": scored(0.0), "q4": scored(0.1)}
    counts = Counter(chosen("difficulty", among, 2000, history))
    assert counts["q0"] > 2 * counts["q5"] > 0, "a task at one half is worth more than one that nobody has tried"
    assert counts["q5"] > 4 * counts["q2"], "one that nobody has tried more than a solved one"
    assert counts["q1"] > 4 * counts["q2"]
    assert counts["q2"] > 0, "a solved task is still tried now and then"
    assert counts["q3"] > 0, "and so is a hopeless one"


def test_what_a_group_promises_follows_the_last_scores_and_the_evidence() -> None:
    assert promise(Shown()) == 0.25
    assert promise(scored(0.5, 64)) > 0.9
    assert promise(scored(1.0, 64)) < 0.01
    assert promise(scored(1.0, 64)) == promise(scored(1.0, 3200))
    assert promise(scored(1.0, 4)) > promise(scored(1.0, 16))
    learnt = Shown(num_pushed=4, num_scored=32, mean_score=0.5, last_score=1.0)
    assert promise(scored(1.0, 32)) < promise(learnt) < promise(scored(0.5, 32))
    assert promise(scored(7.0)) == promise(scored(1.0)), "scores beyond 0 and 1 are as good as those"


def test_difficulty_waits_for_the_group_of_a_task_before_it_gives_another() -> None:
    among = tasks(3)
    playing = {"q0": scored(0.5, unfinished=True), "q1": scored(0.5, unfinished=True)}
    assert set(chosen("difficulty", among, 50, playing)) == {"q2"}
    playing["q2"] = scored(0.5, unfinished=True)
    assert set(chosen("difficulty", among, 50, playing)) == {"q0", "q1", "q2"}


def test_weights_are_shares_of_the_groups_and_zero_is_never() -> None:
    among = tasks(4, q0=5, q1=3.5, q2=0)
    order = pushed_on("weights", among, 190)
    assert Counter(order) == {"q0": 100, "q1": 70, "q3": 20}
    shares = {"q0": 5 / 9.5, "q1": 3.5 / 9.5, "q3": 1 / 9.5}
    for num in range(1, 191):
        for name, share in shares.items():
            assert abs(order[:num].count(name) - share * num) < 1.5, f"{name} after {num} groups"


def test_a_weight_is_a_number_of_zero_or_more() -> None:
    assert [weight_of(task) for task in tasks(3, q0=0, q1=2.5)] == [0.0, 2.5, 1.0]
    for wrong in (-1, "2", True, float("nan"), float("inf"), None):
        with pytest.raises(ConfigError, match=r"--task_sampling weights: task q0: weight .* is no number of 0 or more"):
            weight_of(tasks(1, q0=wrong)[0])
    with pytest.raises(ConfigError, match="no task has a weight above 0"):
        chosen("weights", tasks(2, q0=0, q1=0), 1, {})
