"""Filters of turns and siblings, from the flag to the rows a sampler makes; bounds of attempts and concurrency."""

from pathlib import Path

import pytest
from cli_help import ANSWER, CALL, play, questions

from agentrl.algo import GroupMember, judge_group, turn_advantages
from agentrl.config import AlgoOptions, RunConfig
from agentrl.config.presets import PRESETS, open_settings
from agentrl.errors import ConfigError
from agentrl.types import Flag, MaskCause, TaskStatus


def late_right_answers(record: str, turn: int) -> str:
    """Slot 0 is wrong at once, slot 1 right at once, slot 2 right after a call, slot 3 wrong after one."""
    slot = int(record.split("/")[-2])
    if slot >= 2 and turn == 0:
        return CALL
    return ANSWER if slot in (1, 2) else "<answer>0</answer>"


def trained_slots(folder: Path, *flags: str) -> dict[int, float]:
    played = play(folder, "--num_generations=4", "--advantage_estimator=mean", *flags, say=late_right_answers)
    return {row.slot: row.turns[-1].advantage for row in played.rows}


def test_minimal_advantage_leaves_out_what_is_lower_and_zero_is_a_value(tmp_path: Path) -> None:
    assert trained_slots(tmp_path / "all") == {0: -0.5, 1: 0.5, 2: 0.5, 3: -0.5}
    assert trained_slots(tmp_path / "zero", "--minimal_advantage=0.0") == {1: 0.5, 2: 0.5}
    assert trained_slots(tmp_path / "low", "--minimal_advantage=-0.5") == {0: -0.5, 1: 0.5, 2: 0.5, 3: -0.5}
    assert trained_slots(tmp_path / "scaled", "--minimal_advantage=0.6", "--adv_scaling=2") == {1: 1.0, 2: 1.0}


def test_skip_non_positive_advantage_trains_what_is_above_zero(tmp_path: Path) -> None:
    assert trained_slots(tmp_path, "--skip_non_positive_advantage") == {1: 0.5, 2: 0.5}


def test_min_turns_leaves_out_right_answers_in_fewer_calls(tmp_path: Path) -> None:
    assert trained_slots(tmp_path, "--min_turns=2") == {0: -0.5, 2: 0.5, 3: -0.5}


@pytest.mark.parametrize("limit", [1, 3])
def test_max_concurrent_samples_per_process_bounds_the_episodes_at_once(tmp_path: Path, limit: int) -> None:
    flags = (f"--max_concurrent_samples_per_process={limit}", "--max_staleness=9")
    assert play(tmp_path, *flags, train=questions(4), seconds=0.03).engine.most == limit


@pytest.mark.parametrize(("again", "attempts"), [("false", 1), ("true", 3)])
def test_resample_error_records_plays_a_broken_slot_again(tmp_path: Path, again: str, attempts: int) -> None:
    def breaks(record: str, turn: int) -> str:
        raise RuntimeError("broken")

    assert len(play(tmp_path, f"--resample_error_records={again}", say=breaks).records) == 2 * attempts


# --- Rules -------------------------------------------------------------------------------------------------------


def members(*scores: float, turns: int = 1) -> list[GroupMember]:
    return [GroupMember(slot=slot, score=score, num_turns=turns) for slot, score in enumerate(scores)]


def test_filters_leave_the_baseline_as_it_is_and_give_their_reason() -> None:
    options = AlgoOptions(minimal_advantage=0.0)
    assert judge_group(members(1.0, 0.0, 0.0), options).slots == {0: 1.0, 1: "low_advantage", 2: "low_advantage"}
    options = AlgoOptions(min_turns=2)
    assert judge_group(members(1.0, 0.0, 0.0), options).slots == {0: "min_turns", 1: -0.5, 2: -0.5}


def test_filters_compose_and_a_group_that_is_filtered_whole_is_abandoned() -> None:
    verdict = judge_group(members(1.0, 0.0), AlgoOptions(min_turns=2, skip_non_positive_advantage=True))
    assert (verdict.status, verdict.reason) == (TaskStatus.ABANDONED, "filtered")
    assert verdict.slots == {0: "min_turns", 1: "low_advantage"}


def test_zero_is_not_positive_but_not_below_zero() -> None:
    scores = members(0.0, 0.5, 1.0)
    mean = AlgoOptions(advantage_estimator="mean", minimal_advantage=0.0)
    assert judge_group(scores, mean).slots == {0: "low_advantage", 1: 0.0, 2: 0.5}
    mean = AlgoOptions(advantage_estimator="mean", skip_non_positive_advantage=True)
    assert judge_group(scores, mean).slots == {0: "low_advantage", 1: "low_advantage", 2: 0.5}


def test_a_flagged_turn_is_filtered_by_its_capped_advantage() -> None:
    flags = [[], [Flag.FORMAT_ERROR]]
    assert turn_advantages(0.5, flags, AlgoOptions()) == [0.5, 0.0]
    assert turn_advantages(0.5, flags, AlgoOptions(skip_non_positive_advantage=True)) == [0.5, None]
    assert turn_advantages(0.5, flags, AlgoOptions(minimal_advantage=0.1)) == [0.5, None]


def test_a_filtered_turn_stays_as_context_with_its_cause(tmp_path: Path) -> None:
    def say(record: str, turn: int) -> str:
        right = int(record.split("/")[-2]) == 1
        return (
            '<tool_call>\n{"name": "sum"\n</tool_call>'
            if right and turn == 0
            else ANSWER
            if right
            else "<answer>0</answer>"
        )

    (row,) = play(tmp_path, "--skip_non_positive_advantage", say=say).rows
    first, second = row.turns
    assert MaskCause.FILTERED in row.mask[first.start : first.end]
    assert MaskCause.SAMPLED not in row.mask[first.start : first.end]
    assert MaskCause.SAMPLED in row.mask[second.start : second.end]


# --- Presets -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_preset_sets_what_is_recommended_and_what_is_given_wins(name: str) -> None:
    config = RunConfig.parse([f"--preset={name}"], command="test")
    assert {option: config.flat()[option] for option in PRESETS[name]} == PRESETS[name]
    assert RunConfig.parse([f"--preset={name}", "--adv_scaling=3"], command="test").algo.adv_scaling == 3
    value = str(not PRESETS[name]["token_level_loss"])
    flags = [f"--preset={name}", f"--token_level_loss={value}", "--skip_length_normalization=false"]
    changed = RunConfig.parse(flags, command="test").algo
    assert changed.token_level_loss is not PRESETS[name]["token_level_loss"]


def test_a_preset_is_for_its_loss() -> None:
    assert RunConfig.parse(["--preset=minirl", "--loss=MINIRL"], command="test").algo.strict_in_bound
    with pytest.raises(ConfigError, match="--preset: minirl is a set for MINIRL, but --loss_calculater says GRPO"):
        RunConfig.parse(["--preset=minirl", "--loss=GRPO"], command="test")


def test_open_settings_are_those_a_preset_would_change_and_nobody_gave() -> None:
    algo = AlgoOptions(loss_calculater="MINIRL")
    named = frozenset({"loss_calculater"})
    changes = {"token_level_loss": False, "strict_in_bound": True, "skip_length_normalization": True}
    assert open_settings(algo, named) == ("minirl", changes)
    assert open_settings(algo, named | {"strict_in_bound", "token_level_loss"})[1] == {
        "skip_length_normalization": True
    }
    assert open_settings(algo, frozenset()) == ("", {})
    assert open_settings(AlgoOptions(loss_calculater="DR_GRPO"), named) == ("", {})


def test_a_run_with_a_preset_is_the_same_from_its_saved_file(tmp_path: Path) -> None:
    config = RunConfig.parse(["--preset=gspo", "--epsilon=0.01"], command="test")
    config.save(tmp_path / "config.yaml")
    assert RunConfig.parse(["--config", str(tmp_path / "config.yaml")], command="test") == config
