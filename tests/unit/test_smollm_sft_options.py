"""Every option of ``agentrl sft`` has an effect here, or is listed with the test that shows it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from agentrl.cli import sft as command
from agentrl.config import SftConfig
from agentrl.config.sft import WITHOUT_EFFECT
from agentrl.errors import ConfigError
from agentrl.models.tiny import CALCULATOR, TINY_MODEL_DIR, questions
from agentrl.models.tiny_warm_start import good_dialogue

USUAL = {
    "learning_rate": "1e-3",
    "max_steps": "3",
    "per_device_train_batch_size": "2",
    "gradient_accumulation_steps": "1",
    "lr_scheduler_type": "linear",
    "warmup_ratio": "0",
    "save_steps": "100",
}
CHANGES_THE_WEIGHTS = {
    "seed": "1",
    "supervise": "last",
    "learning_rate": "2e-3",
    "weight_decay": "0.5",
    "adam_beta1": "0.5",
    "adam_beta2": "0.5",
    "adam_epsilon": "1e-2",
    "max_grad_norm": "1e-6",
    "lr_scheduler_type": "cosine",
    "warmup_steps": "2",
    "warmup_ratio": "0.5",
    "max_steps": "2",
    "per_device_train_batch_size": "3",
    "gradient_accumulation_steps": "2",
    "max_tokens": "75",
}
SHOWN = {
    "run_name": "test_the_result_lies_below_the_output",
    "output_dir": "test_the_result_lies_below_the_output",
    "train_file": "test_the_result_lies_below_the_output",
    "model_name_or_path": "test_the_result_lies_below_the_output",
    "num_train_epochs": "test_epochs_give_the_steps",
    "save_steps": "test_save_steps_and_save_total_limit_choose_the_checkpoints",
    "save_total_limit": "test_save_steps_and_save_total_limit_choose_the_checkpoints",
    "save_only_model": "test_save_only_model_leaves_the_training_state_out",
    "max_tokens_per_microbatch": "test_max_tokens_per_microbatch_splits_a_step",
    "logging_steps": "test_logging_steps_thins_the_lines",
    "torch_dtype": "test_model_options_reach_the_trainer",
    "device": "test_model_options_reach_the_trainer",
    "gradient_checkpointing": "test_model_options_reach_the_trainer",
    "trust_remote_code": "test_model_options_reach_the_trainer",
    "resume_from_checkpoint": "test_model_options_reach_the_trainer",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sft")
    lines = [
        json.dumps({"messages": good_dialogue(question), "tools": [CALCULATOR]}) for question in questions("warmup")
    ]
    (path / "dialogues.jsonl").write_text("\n".join(lines[:3] + lines[-3:]) + "\n")
    return path


def sft(folder: Path, name: str, changes: dict[str, str]) -> Path:
    options = {
        **USUAL,
        "run_name": name,
        "output_dir": str(folder / "output"),
        "train_file": str(folder / "dialogues.jsonl"),
        "model_name_or_path": str(TINY_MODEL_DIR),
        **changes,
    }
    assert command.main([f"--{option}={value}" for option, value in options.items()]) == 0
    return folder / "output" / name


def weights(run: Path) -> str:
    newest = max(run.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()


def steps(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def usual(folder: Path) -> str:
    return weights(sft(folder, "usual", {}))


@pytest.mark.parametrize("option", CHANGES_THE_WEIGHTS)
def test_it_changes_the_weights(folder: Path, usual: str, option: str) -> None:
    assert weights(sft(folder, f"with-{option}", {option: CHANGES_THE_WEIGHTS[option]})) != usual


def test_the_same_options_give_the_same_weights(folder: Path, usual: str) -> None:
    assert weights(sft(folder, "again", {})) == usual


def test_every_option_is_tested_here_or_refused() -> None:
    assert {*CHANGES_THE_WEIGHTS, *SHOWN, *WITHOUT_EFFECT} == set(SftConfig.parse([]).flat())
    assert all(test in globals() for test in SHOWN.values())


def test_the_result_lies_below_the_output(folder: Path) -> None:
    run = sft(folder, "place", {"max_steps": "1", "output_dir": str(folder / "elsewhere")}).name
    assert (folder / "elsewhere" / run / "checkpoint-1" / "tokenizer.json").is_file()
    for option in ("train_file", "model_name_or_path"):
        with pytest.raises(ConfigError, match="nowhere"):
            sft(folder, "missing", {option: str(folder / "nowhere")})


def test_epochs_give_the_steps(folder: Path) -> None:
    run = sft(folder, "epochs", {"max_steps": "-1", "num_train_epochs": "2", "per_device_train_batch_size": "4"})
    assert len(steps(run)) == 4, "6 dialogues are 2 steps of 4, twice"


def test_save_steps_and_save_total_limit_choose_the_checkpoints(folder: Path) -> None:
    run = sft(folder, "saves", {"max_steps": "5", "save_steps": "1", "save_total_limit": "2"})
    assert sorted(path.name for path in run.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-5"]


def test_save_only_model_leaves_the_training_state_out(folder: Path) -> None:
    with_state, alone = (
        sft(folder, f"only-{only}", {"save_only_model": only, "max_steps": "1"}) for only in ("false", "true")
    )
    assert (with_state / "checkpoint-1" / "state").is_dir()
    assert (alone / "checkpoint-1" / "model.safetensors").is_file()
    assert not (alone / "checkpoint-1" / "state").exists()


def test_max_tokens_per_microbatch_splits_a_step(folder: Path, usual: str) -> None:
    run = sft(folder, "split", {"max_tokens_per_microbatch": "80", "max_steps": "1"})
    assert steps(run)[0]["batch/microbatches"] == 2
    assert steps(folder / "output" / "usual")[0]["batch/microbatches"] == 1


def test_logging_steps_thins_the_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sft(folder, "thin", {"logging_steps": "2"})
    lines = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    assert lines == ["2/3", "3/3"]


def test_model_options_reach_the_trainer() -> None:
    """What the trainer does with them is tested there."""
    flags = "--torch_dtype=bfloat16 --device=cuda --gradient_checkpointing --trust_remote_code"
    config = SftConfig.parse([*flags.split(), "--resume_from_checkpoint=auto"])
    trained = command.train_config(config, 1)
    assert trained.model == config.model
    assert trained.resume == "auto"
