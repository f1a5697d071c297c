"""Two ranks train the same model as one: gradients, curves, checkpoints, waits and errors of one launch."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.timeout(300)]

HERE = Path(__file__).resolve().parent
UNIT = HERE.parent / "unit"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank found."""
    folder = tmp_path_factory.mktemp("ranks")
    launched = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"),
            *(str(HERE / "rank_checks.py"), str(folder)),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(UNIT)])},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert launched.returncode == 0, launched.stderr[-6000:]
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen2", "mistral"])
def test_every_gradient_and_metric_is_that_of_one_rank(family: str, found: list[dict[str, Any]]) -> None:
    for rank in found:
        seen = rank["gradients_match"][family]
        assert seen["num_grads"] == 1.0, "a parameter without gradient"
        assert seen["grads"] <= 1e-5
        assert seen["metrics"] <= 1e-5
        assert seen["norm"] <= 1e-5
        assert seen["clipped"], "clipping is to act"
        assert seen["canary"] <= 1e-5


def test_the_curve_of_two_ranks_is_that_of_one(found: list[dict[str, Any]]) -> None:
    seen = found[0]["curves_match"]
    assert len(seen["loss"]) == 4
    assert len(set(seen["loss"])) == 4
    assert seen["curve"] <= 1e-5
    assert seen["weights"] <= 1e-5
    assert found[1]["curves_match"]["others_published"] == 0, "only rank 0 speaks to engines"


def test_a_checkpoint_restores_on_another_number_of_ranks(found: list[dict[str, Any]]) -> None:
    seen = found[0]["curves_match"]
    assert seen["two_to_one_steps"] == [2, 3, 4]
    assert seen["two_to_one"] <= 1e-6
    assert seen["one_to_two"] <= 1e-6
    assert {"config.json", "model.safetensors", "tokenizer.json", "state", "COMPLETE"} <= set(seen["tops"])


def test_a_run_resumed_on_two_ranks_is_the_uninterrupted_one_bit_for_bit(found: list[dict[str, Any]]) -> None:
    seen = found[0]["curves_match"]
    assert seen["two_to_two_steps"] == [2, 3, 4]
    assert seen["two_to_two"] == 0.0


def test_an_error_of_rank_0_is_that_of_all_and_what_was_trained_is_saved(found: list[dict[str, Any]]) -> None:
    for rank in found:
        seen = rank["waits_and_errors"]
        assert seen["timeout"] == "WaitTimeout: waited for groups that never came"
        assert seen["timeout_saved"]
        assert seen["slow_steps"] == 2
    surprises = [rank["waits_and_errors"]["surprise"] for rank in found]
    assert surprises == ["ValueError: nobody expected this", "RankFailed: ValueError: nobody expected this"]


def test_a_step_refused_on_all_ranks_is_saved_whole(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["waits_and_errors"]["refused"].startswith("StepRefused: step 2: loss is ")
        assert rank["waits_and_errors"]["replay"] == 0, "micro-batches of all ranks, without padding"


def test_a_stop_ends_all_ranks_after_the_same_step(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert rank["waits_and_errors"]["stopped"].startswith("Interrupted: stopped after step 1")
        assert rank["waits_and_errors"]["stopped_saved"] == ["checkpoint-1"]


def test_a_checkpoint_of_the_model_alone_is_no_start_for_a_resume(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "state" not in rank["waits_and_errors"]["only_model"]
        assert "model.safetensors" in rank["waits_and_errors"]["only_model"]
        assert rank["waits_and_errors"]["only_resumed"].startswith("ConfigError: --resume_from_checkpoint: ")
        assert "--model_name_or_path" in rank["waits_and_errors"]["only_resumed"]
