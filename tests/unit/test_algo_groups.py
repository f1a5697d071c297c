"""What a group is worth: advantages, reasons, and the cap of flagged turns."""

import math

import pytest

from agentrl.algo import GroupMember, estimate_advantages, judge_group, turn_advantages
from agentrl.config import AlgoOptions
from agentrl.errors import ConfigError
from agentrl.types import Flag, TaskStatus


def members(*scores: float | None) -> list[GroupMember]:
    return [GroupMember(slot=slot, score=score) for slot, score in enumerate(scores)]


def test_advantages_are_scaled_and_keep_their_slots() -> None:
    verdict = judge_group(members(1.0, 0.0, 0.0), AlgoOptions(adv_scaling=2.0))
    assert verdict.status is TaskStatus.COMPLETED
    assert verdict.slots == {0: 2.0, 1: -1.0, 2: -1.0}


def test_broken_and_unscored_members_are_outside_the_baseline() -> None:
    group = [*members(1.0, 0.0, None), GroupMember(slot=3, score=1.0, valid=False)]
    assert judge_group(group, AlgoOptions()).slots == {0: 1.0, 1: -1.0, 2: "unscored", 3: "invalid"}


def test_a_score_that_is_not_finite_counts_as_unscored() -> None:
    assert judge_group(members(1.0, 0.0, math.nan), AlgoOptions()).slots[2] == "unscored"


def test_a_group_of_equal_scores_is_abandoned_for_lack_of_signal() -> None:
    verdict = judge_group(members(1.0, 1.0, None), AlgoOptions())
    assert (verdict.status, verdict.reason) == (TaskStatus.ABANDONED, "no_signal")
    assert verdict.slots == {0: "no_signal", 1: "no_signal", 2: "unscored"}


def test_a_group_of_equal_scores_is_kept_with_advantage_zero_when_asked() -> None:
    verdict = judge_group(members(1.0, 1.0), AlgoOptions(drop_zero_advantage=False))
    assert (verdict.status, dict(verdict.slots)) == (TaskStatus.COMPLETED, {0: 0.0, 1: 0.0})


def test_a_zero_advantage_inside_a_group_with_signal_is_kept() -> None:
    verdict = judge_group(members(0.0, 0.5, 1.0), AlgoOptions(advantage_estimator="mean"))
    assert verdict.slots == {0: -0.5, 1: 0.0, 2: 0.5}


@pytest.mark.parametrize("scores", [(), (1.0,), (1.0, None), (None, None)])
def test_fewer_than_two_valid_members_abandon_the_group(scores: tuple[float | None, ...]) -> None:
    verdict = judge_group(members(*scores), AlgoOptions(drop_zero_advantage=False))
    assert (verdict.status, verdict.reason) == (TaskStatus.ABANDONED, "too_few_valid")
    assert len(verdict.slots) == len(scores)
    assert not any(isinstance(value, float) for value in verdict.slots.values())


def test_malformed_and_repeating_turns_get_at_most_zero_and_failed_tools_do_not_count() -> None:
    flags = [[], [Flag.FORMAT_ERROR], [Flag.REPEAT_ERROR], [Flag.TOOL_FAILED], [Flag.SUMMARY]]
    assert turn_advantages(0.5, flags, AlgoOptions()) == [0.5, 0.0, 0.0, 0.5, 0.5]
    assert turn_advantages(-0.5, flags, AlgoOptions()) == [-0.5] * 5


def test_an_unknown_estimator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"advantage_estimator.*'median'.*leave_one_out"):
        estimate_advantages([1.0, 0.0], estimator="median")
