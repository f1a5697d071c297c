"""What a person sees of a run: table, lines, sparkline, trajectories; and how the metrics file is followed."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.cli.view import MetricsTail, RunView, plain_line, short, show_trajectory, sparkline
from agentrl.types import DispatchedSamplingTask, Outcome, Record, RecordStatus, Sampling, Score, Worker


def step(number: int, **more: float) -> dict[str, Any]:
    values = {"reward": 0.5, "tokens_per_second": 12_345.6, "staleness": 1.25, "loss": -0.01234}
    return {"kind": "step", "step": number, **values, **more}


def scored(value: float | None, *, split: str = "train", turns: int = 2) -> dict[str, Any]:
    return {"kind": "record", "split": split, "score": value, "turns": turns}


def write(path: Path, *events: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def console(*, terminal: bool, width: int = 80) -> tuple[Console, io.StringIO]:
    output = io.StringIO()
    return Console(file=output, force_terminal=terminal, width=width, color_system=None), output


def seen(tmp_path: Path, *events: dict[str, Any], terminal: bool = False, max_steps: int = 40, **more: int) -> str:
    """What is printed of these events."""
    path = tmp_path / "metrics.jsonl"
    shown, output = console(terminal=terminal)
    with RunView(shown, MetricsTail(path, from_end=True), max_steps=max_steps, **more) as view:
        view.phase = "training"
        for event in events:
            write(path, event)
            view.refresh([Worker(id="s", kind="sampler", host="h", pid=1, waiting_for="a group", age_seconds=2.0)])
    return output.getvalue()


# --- Sparkline ---------------------------------------------------------------------------------------------------


def test_a_sparkline_has_a_character_a_value_from_lowest_to_highest() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""


def test_a_sparkline_shows_the_newest_and_holds_values_outside_0_and_1() -> None:
    assert sparkline([1.0] * 9 + [-3.0, 7.0], width=3) == "█▁█"


# --- Following the file ------------------------------------------------------------------------------------------


def test_a_line_that_is_still_being_written_waits_until_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path, from_end=False)
    assert tail.read() == []
    path.write_bytes(b'{"n": 1}\n{"n": "\xc3')
    assert tail.read() == [{"n": 1}]
    assert tail.read() == []
    with path.open("ab") as file:
        file.write(b'\xa9"}\n{"n": 3}\n{"n"')
    assert tail.read() == [{"n": "é"}, {"n": 3}]


@pytest.mark.parametrize(("from_end", "expected"), [(True, [{"n": 2}]), (False, [{"n": 1}, {"n": 2}])])
def test_a_resumed_run_shows_its_own_events_only(
    tmp_path: Path, from_end: bool, expected: list[dict[str, int]]
) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, {"n": 1})
    tail = MetricsTail(path, from_end=from_end)
    write(path, {"n": 2})
    assert tail.read() == expected


# --- Lines and table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "turns", "speed"), [(1, 25.0, 12_345.6), (40, 2.0, 999.4), (999, 9.9, 9_949.0)])
def test_a_plain_line_fits_eighty_columns(number: int, turns: float, speed: float) -> None:
    event = {**step(number, tokens_per_second=speed), "success": 1.0, "turns": turns}
    line = plain_line(event, max_steps=max(40, number))
    assert len(line) <= 80, line
    assert f"step {number:>3}/" in line
    assert f"reward 0.50 success 100% turns {turns}" in line


def test_speeds_are_shortened() -> None:
    assert [short(value) for value in (0, 999.4, 1_234, 9_940, 12_345)] == ["0", "999", "1.2k", "9.9k", "12k"]


def test_without_a_terminal_every_step_is_a_line_with_the_success_of_training_records(tmp_path: Path) -> None:
    events = [scored(1.0), scored(0.0, turns=4), scored(None), scored(0.0, split="eval"), step(1), step(2, reward=1.0)]
    lines = seen(tmp_path, *events).splitlines()
    assert [line.split()[1] for line in lines] == ["1/40", "2/40"]
    assert "reward 0.50 success  50% turns 3.0" in lines[0]
    assert "reward 1.00" in lines[1]


def test_a_round_of_evaluation_is_told(tmp_path: Path) -> None:
    event = {"kind": "evaluation", "step": 20, "success": 0.875}
    assert seen(tmp_path, event) == "held-out success at step 20: 0.875\n"


def test_a_line_that_is_longer_after_all_is_not_broken_in_two(tmp_path: Path) -> None:
    assert len(seen(tmp_path, step(99_999), max_steps=99_999).splitlines()) == 1


def test_logging_steps_thins_the_lines_and_keeps_the_last(tmp_path: Path) -> None:
    lines = seen(tmp_path, *map(step, range(1, 8)), max_steps=7, logging_steps=3).splitlines()
    assert [line.split()[1] for line in lines] == ["3/7", "6/7", "7/7"]


def test_the_table_shows_steps_reward_phase_and_heartbeats(tmp_path: Path) -> None:
    printed = seen(tmp_path, scored(1.0), *map(step, range(1, 13)), terminal=True)
    for text in ("step", "reward", "success", "turns", "tokens/s", "staleness", "loss"):
        assert text in printed
    assert "12,346" in printed
    assert "100%" in printed
    assert "-0.0123" in printed
    assert "reward ▅▅▅▅▅▅▅▅▅▅▅▅" in printed
    assert "training, 40 steps planned · last heartbeats: sampler 2 s, waits for a group" in printed


def test_the_last_table_has_the_newest_steps_and_fits_the_terminal(tmp_path: Path) -> None:
    printed = seen(tmp_path, *map(step, range(1, 13)), terminal=True)
    last = printed[printed.rindex("tokens/s") :].splitlines()
    assert [line.split()[0] for line in last[1:9]] == [str(number) for number in range(5, 13)]
    assert all(len(line) <= 80 for line in last)


def test_an_event_without_values_is_shown_all_the_same(tmp_path: Path) -> None:
    assert "step   1/40 reward 0.00 success    - turns 0.0" in seen(tmp_path, {"kind": "step", "step": 1})


# --- Trajectories ------------------------------------------------------------------------------------------------


def test_a_trajectory_is_shown_turn_by_turn_with_its_outcome(tmp_path: Path) -> None:
    turn = DispatchedSamplingTask(
        record="r/eval/0/q/0/0",
        turn=0,
        parent=None,
        prompt_ids_delta=(1,),
        token_ids=(2,),
        logprobs=(-1.0,),
        version_spans=(),
        sampling=Sampling(max_new_tokens=8),
        finish_reason="stop",
        new_messages=({"role": "user", "content": "What is [bold]1+2[/bold]?"},),
    )
    record = Record(
        task="r/eval/0/q",
        slot=0,
        attempt=0,
        status=RecordStatus.SCORED,
        outcome=Outcome.ANSWERED,
        scores=(Score(value=1.0),),
    )
    shown, output = console(terminal=False)
    show_trajectory(shown, "before training", record, [turn], [" <answer>3</answer> [/x]\n"])
    printed = output.getvalue()
    assert "before training" in printed
    assert "user       What is [bold]1+2[/bold]?" in printed
    assert "assistant  <answer>3</answer> [/x]" in printed
    assert "answered, score 1" in printed
