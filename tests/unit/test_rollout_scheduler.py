"""How many episodes a sampler should have in progress, by simulated time."""

import pytest

from agentrl.rollout.scheduler import MAX_EPISODES_PER_REQUEST, Fleet, SamplingScheduler


def start(scheduler: SamplingScheduler, group: str, size: int, now: float) -> None:
    scheduler.group_started(group, size)
    for _ in range(size):
        scheduler.episode_began(now)
        scheduler.request_began(now)


def test_the_whole_gap_is_started_at_once_and_no_more() -> None:
    scheduler = SamplingScheduler(target_concurrency=32)
    assert scheduler.groups_to_start(8) == 4
    for n in range(4):
        start(scheduler, str(n), 8, 0.0)
    assert scheduler.groups_to_start(8) == 0
    assert not scheduler.has_room
    scheduler.episode_finished("0")
    assert scheduler.groups_to_start(8) == 1
    scheduler.group_ended("1")
    assert scheduler.groups_to_start(8) == 2


def test_episodes_that_wait_for_tools_are_made_up_for_by_further_ones() -> None:
    scheduler = SamplingScheduler(target_concurrency=8)
    start(scheduler, "a", 8, 0.0)
    for second in range(60):
        for _ in range(4):
            scheduler.request_ended(float(second))
        for _ in range(4):
            scheduler.request_began(second + 0.5)
    scheduler.request_ended(60.0)
    assert 9 <= scheduler.wanted_episodes <= 12
    for _ in range(7):
        scheduler.request_ended(60.0)
    scheduler.request_began(600.0)
    assert scheduler.wanted_episodes == 8 * MAX_EPISODES_PER_REQUEST


@pytest.mark.parametrize("limit", [1, 5])
def test_max_episodes_bounds_whatever_is_wanted(limit: int) -> None:
    scheduler = SamplingScheduler(target_concurrency=32, max_episodes=limit)
    assert scheduler.wanted_episodes == limit


def test_engines_that_go_lower_the_target_at_once_and_samplers_share_it_exactly() -> None:
    scheduler = SamplingScheduler(target_concurrency=10, fleet=Fleet(num_engines=3))
    assert scheduler.wanted_episodes == 30
    start(scheduler, "a", 30, 0.0)
    scheduler.see(Fleet(num_engines=1))
    assert scheduler.wanted_episodes == 10
    assert scheduler.groups_to_start(8) == 0
    scheduler.see(Fleet(num_engines=0))
    assert scheduler.wanted_episodes == 0
    shares = [Fleet(num_engines=1, num_samplers=4, rank=rank).share_of(10) for rank in range(4)]
    assert shares == [3, 3, 2, 2]
