"""The lines before a run: short, once, and with the numbers that training computes with."""

from pathlib import Path

import pytest
import torch
from cli_help import configured, questions

from agentrl.algo import build_loss
from agentrl.algo.losses import out_of_bound_limits
from agentrl.cli.start_screen import WIDTH, ratio_bounds, start_screen
from agentrl.config import RunConfig
from agentrl.config.fates import FATES, Fate

LOSSES = ("GRPO", "GSPO", "MINIRL", "CISPO", "DAPO", "DR_GRPO", "CrossEntropy")


def screen(folder: Path, *flags: str, train: int | None = 10, held_out: int = 0) -> list[str]:
    config = configured(folder, *flags)
    return start_screen(config, None if train is None else questions(train), questions(held_out))


def line(folder: Path, label: str, *flags: str, train: int | None = 10, held_out: int = 0) -> str:
    lines = screen(folder, *flags, train=train, held_out=held_out)
    (at,) = [number for number, text in enumerate(lines) if text.split()[0] == label]
    more = next((number for number in range(at + 1, len(lines)) if not lines[number].startswith(" ")), len(lines))
    return " ".join(text.removeprefix(label).strip() for text in lines[at:more])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--epsilon=0.3", "--epsilon_higher=0.2", "--importance_weight_cap_ratio=1.5"],
        ["--out_of_bound_mask", "--strict_in_bound"],
        ["--out_of_bound_mask=false", "--is_cap=2", "--cispo_cap_low=0.5", "--cispo_cap_high=3"],
    ],
)
def test_the_bounds_shown_are_those_of_the_loss(loss: str, flags: list[str]) -> None:
    algo = RunConfig.parse([f"--loss={loss}", *flags], command="test").algo_options
    bounds, settings = ratio_bounds(algo), build_loss(algo).settings
    if loss == "CrossEntropy":
        assert bounds == ratio_bounds(algo)
        assert bounds.clip is bounds.weight is bounds.mask is None
        return
    if loss == "CISPO":
        assert bounds.weight == (settings.cap_low, settings.cap_high)
    elif loss == "MINIRL":
        assert bounds.weight == (0.0, settings.is_cap or float("inf"))
    else:
        assert bounds.clip == pytest.approx((settings.low, settings.high))
    limits = out_of_bound_limits(torch.zeros(1), settings) if settings.out_of_bound_mask else None
    assert bounds.mask == (None if limits is None else pytest.approx(limits))


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ([], "clipped to [0.8, 1.3]; no out-of-bound mask"),
        (["--loss=MINIRL"], "weight within [0, inf]; masked out of [0.2, 2.2]"),
        (["--preset=minirl"], "weight within [0, inf]; masked out of [0.8, 1.3]"),
        (["--preset=gspo"], "of episodes clipped to [0.9997, 1.0004]; no out-of-bound mask"),
        (["--preset=cispo"], "weight within [0, 5]; no out-of-bound mask"),
        (["--preset=dapo"], "clipped to [0.8, 1.28]; no out-of-bound mask"),
        (["--loss=CrossEntropy"], "none: log-probs alone"),
        (
            ["--loss=MINIRL", "--out_of_date_decay=0.1"],
            "weight within [0, inf]; masked out of [0.2, 2.2], x exp(-0.1 age)",
        ),
    ],
)
def test_ratio_bounds_are_numbers(tmp_path: Path, flags: list[str], shown: str) -> None:
    assert line(tmp_path, "ratio", *flags) == shown


def test_the_arithmetic_of_a_step_is_shown(tmp_path: Path) -> None:
    flags = ["--per_device_train_batch_size=3", "--gradient_accumulation_steps=2", "--num_generations=4"]
    assert line(tmp_path, "step", *flags) == "3 x 2 records -> 2 groups x 4 = 8 records; 5 steps"
    assert line(tmp_path, "step", "--groups_per_step=5") == "groups_per_step: 5 groups x 2 = 10 records; 2 steps"
    assert line(tmp_path, "step", "--groups_per_step=1", train=None) == "groups_per_step: 1 group x 2 = 2 records"
    assert line(tmp_path, "step", "--max_steps=7", train=None).endswith("; 7 steps")


def test_staleness_estimator_tasks_and_tools_are_shown(tmp_path: Path) -> None:
    assert line(tmp_path, "staleness") == "max_staleness 1, drop_staleness 8 steps"
    assert line(tmp_path, "staleness", "--sync_sampling") == "max_staleness 0 (sync_sampling), drop_staleness 8 steps"
    assert line(tmp_path, "reuse", "--max_trained_count=3") == "each group is trained 3 times, 1 step apart"
    assert line(tmp_path, "advantage") == "leave_one_out: score - mean of the others (GRPO's paper: mean_std)"
    assert line(tmp_path, "tasks", "--num_train_epochs=2") == "10 x 2 epochs; no evaluation"
    assert line(tmp_path, "tasks", train=None, held_out=3) == "those in the store; 3 held out, played before and after"
    assert line(tmp_path, "tasks", "--eval_steps=5", held_out=3).endswith("before and after, every 5 steps")
    assert line(tmp_path, "tools") == "none"
    assert line(tmp_path, "tools", "--mcp_manager_url", "builtin:calculator", "builtin:python") == "calculator, python"


def test_a_loss_named_alone_shows_what_its_preset_would_change(tmp_path: Path) -> None:
    assert line(tmp_path, "preset", "--loss=MINIRL", "--strict_in_bound").startswith(
        "none; --preset minirl would set token_level_loss false"
    )
    assert line(tmp_path, "preset", "--preset=dapo") == "dapo"
    assert not [text for text in screen(tmp_path, "--loss=GRPO") if text.startswith("preset")]
    assert not [text for text in screen(tmp_path) if text.startswith("preset")]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("width", [1, 200])
def test_it_fits_a_small_terminal(tmp_path: Path, loss: str, width: int) -> None:
    decay = ["--out_of_date_decay=0.123456", "--is_cap=1.23456", "--out_of_bound_mask"]
    urls = ["builtin:calculator"] * (width // 10 + 1)
    lines = screen(tmp_path / ("x" * width), f"--loss={loss}", *decay, "--mcp_manager_url", *urls, held_out=5)
    assert len(lines) <= 12
    assert max(map(len, lines)) <= WIDTH


def test_what_has_no_effect_is_a_line_that_fits() -> None:
    for row in FATES.values():
        assert bool(row.note) == bool(row.noted), row.name
        assert len(row.name) + len(row.note) <= WIDTH - len("no effect  --: "), row.name
        assert (row.fate is Fate.OWED) == bool(row.issue), row.name


def test_what_chooses_tasks_and_replaces_groups_is_shown(tmp_path: Path) -> None:
    assert line(tmp_path, "tasks", "--task_sampling=difficulty") == "10 x 1 epoch, by difficulty; no evaluation"
    assert line(tmp_path, "tasks").startswith("10 x 1 epoch; ")
    flags = ("--groups_per_step=2", "--dynamic_sampling=true")
    assert line(tmp_path, "step", *flags).endswith("; 5 steps; up to 6 refills")
    assert line(tmp_path, "step", "--groups_per_step=2").endswith("; 5 steps")
