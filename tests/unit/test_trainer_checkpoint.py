import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from trainer_help import gradients, model, plan, random_rows, write_model
from transformers import AutoModelForCausalLM

from agentrl.config import CheckpointOptions, ModelOptions, OptimOptions
from agentrl.errors import ConfigError
from agentrl.models.load import load_policy
from agentrl.trainer.checkpoint import Checkpoints, complete, newest
from agentrl.trainer.optim import build_optimizer
from agentrl.trainer.progress import Progress


def checkpoints(tmp_path: Path, *, lr: float = 1e-3, family: str = "qwen3", keep: int = 3) -> Checkpoints:
    policy = model(tmp_path / f"model-{family}", family)
    optimizer, schedule = build_optimizer(
        policy.model, OptimOptions(learning_rate=lr, lr_scheduler_type="linear"), total_steps=100
    )
    options = CheckpointOptions(save_steps=2, save_total_limit=keep)
    return Checkpoints(folder=tmp_path / "run", policy=policy, optimizer=optimizer, schedule=schedule, options=options)


def step(saver: Checkpoints, seed: int) -> None:
    gradients(saver.policy, plan(random_rows(seed)))
    saver.optimizer.step()
    saver.schedule.step()


def test_a_restored_checkpoint_steps_on_as_the_original(tmp_path: Path) -> None:
    first = checkpoints(tmp_path)
    for seed in range(3):
        step(first, seed)
    first.save(Progress(step=3, version=5), {"position": 3})
    drawn = torch.rand(3)
    step(first, 9)

    second = checkpoints(tmp_path)
    assert second.restore("auto") == (Progress(step=3, version=5), {"position": 3})
    assert torch.equal(torch.rand(3), drawn)
    step(second, 9)
    for (name, ours), (_, theirs) in zip(
        first.policy.model.named_parameters(), second.policy.model.named_parameters(), strict=True
    ):
        assert torch.equal(ours, theirs), name
    assert second.schedule.get_last_lr() == first.schedule.get_last_lr()


def test_the_top_of_a_checkpoint_is_a_model_folder(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    step(saver, 0)
    path = saver.save(Progress(step=1, version=1), {})
    weights = dict(AutoModelForCausalLM.from_pretrained(path).named_parameters())
    for name, parameter in saver.policy.model.named_parameters():
        assert torch.equal(weights[name], parameter), name
    assert (path / "tokenizer.json").is_file()
    assert (path / "chat_template.jinja").is_file()


def test_a_new_learning_rate_takes_effect_at_resume(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path, lr=1e-3)
    step(saver, 0)
    saver.save(Progress(step=1, version=1), {})
    again = checkpoints(tmp_path, lr=5e-4)
    again.restore("auto")
    assert again.optimizer.param_groups[0]["lr"] == pytest.approx(5e-4 * 0.99)


def test_newest_is_numeric_and_complete(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path, keep=0)
    step(saver, 0)
    for number in (8, 9, 10, 100):
        saver.save(Progress(step=number, version=number), {})
    assert newest(saver.folder) == saver.folder / "checkpoint-100"
    (saver.folder / "checkpoint-100/COMPLETE").unlink()
    (saver.folder / "checkpoint-200.partial").mkdir()
    assert newest(saver.folder) == saver.folder / "checkpoint-10"
    assert [number for number, _ in complete(saver.folder)] == [8, 9, 10]
    with pytest.raises(ConfigError, match="checkpoint-100 is incomplete"):
        saver.restore(str(saver.folder / "checkpoint-100"))


def test_the_oldest_go_first(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path, keep=2)
    step(saver, 0)
    for number in (2, 4, 10):
        saver.save(Progress(step=number, version=number), {})
    assert [number for number, _ in complete(saver.folder)] == [4, 10]


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    step(saver, 0)
    saver.save(Progress(step=2, version=2), {})
    saver.save(Progress(step=2, version=7), {})
    assert saver.restore("auto") == (Progress(step=2, version=7), {})
    assert [path.name for path in saver.folder.iterdir()] == ["checkpoint-2"]


def test_going_back_sets_later_checkpoints_aside(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    step(saver, 0)
    for number in (2, 4):
        saver.save(Progress(step=number, version=number), {})
    assert saver.restore(str(saver.folder / "checkpoint-2")) is not None
    saver.set_aside_later(2)
    assert newest(saver.folder) == saver.folder / "checkpoint-2"
    assert (saver.folder / "checkpoint-4.superseded/COMPLETE").is_file()


def test_a_model_without_state_is_refused_with_the_way_out(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    with pytest.raises(ConfigError, match=r"has no state/ .*use --model_name_or_path"):
        saver.restore(str(tmp_path / "model-qwen3"))
    with pytest.raises(ConfigError, match="is not a checkpoint folder"):
        saver.restore(str(tmp_path / "nothing"))
    assert saver.restore("auto") is None
    assert saver.restore("") is None


def test_the_model_alone_is_saved_without_what_a_resume_needs(tmp_path: Path) -> None:
    whole = checkpoints(tmp_path)
    step(whole, 0)
    saver = dataclasses.replace(whole, options=CheckpointOptions(save_only_model=True))
    path = saver.save(Progress(step=1, version=1), {})
    assert not (path / "state").exists()
    assert "--save_only_model" in saver.way_on
    load_policy(path, ModelOptions(device="cpu"))
    with pytest.raises(ConfigError, match=r"--save_only_model.*use --model_name_or_path .*checkpoint-1"):
        saver.restore("auto")


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    saver = checkpoints(tmp_path)
    step(saver, 0)
    path = saver.save(Progress(step=1, version=1), {})
    other = checkpoints(tmp_path, family="llama")
    with pytest.raises(ConfigError, match=r"is of another model: .*q_norm\.weight \[8\], here missing"):
        other.restore(str(path))


SAVE_FOR_EVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_trainer_checkpoint import checkpoints, step
from agentrl.trainer.progress import Progress
saver = checkpoints(Path(sys.argv[1]), keep=2)
number = 0
while True:
    number += 1
    step(saver, number)
    saver.save(Progress(step=number, version=number), {"position": number})
    print(number, flush=True)
"""


def test_a_kill_in_mid_save_leaves_a_usable_checkpoint(tmp_path: Path) -> None:
    write_model(tmp_path / "model-qwen3")
    child = subprocess.Popen(
        [sys.executable, "-c", SAVE_FOR_EVER, str(tmp_path), str(Path(__file__).parent)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert child.stdout is not None
    reported = int(child.stdout.readline())
    partial = tmp_path / "run" / f"checkpoint-{reported + 1}.partial"
    deadline = time.monotonic() + 30
    while not partial.exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert partial.exists(), "the kill was meant to hit a save"

    path = newest(tmp_path / "run")
    assert path is not None
    saver = checkpoints(tmp_path)
    restored = saver.restore("auto")
    assert restored is not None
    progress, batches = restored
    assert progress.step >= reported
    assert batches == {"position": progress.step}
    assert json.loads((path / "state/progress.json").read_text())["step"] == progress.step
    load_policy(path, ModelOptions(device="cpu"))
    step(saver, 0)
    saver.save(Progress(step=reported + 1, version=50), {})
    assert newest(tmp_path / "run") == tmp_path / "run" / f"checkpoint-{reported + 1}"
    assert not partial.exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("damaged", ["progress.json", ".metadata", "__0_0.distcp"])
def test_a_damaged_checkpoint_is_refused_with_its_file_and_the_way_out(tmp_path: Path, damaged: str) -> None:
    saver = checkpoints(tmp_path)
    step(saver, 0)
    path = saver.save(Progress(step=1, version=1), {})
    cut(path / "state" / damaged)
    with pytest.raises(ConfigError) as refused:
        checkpoints(tmp_path).restore("auto")
    message = str(refused.value)
    assert f"{path / 'state'}" in message
    assert message.endswith("go on from an earlier checkpoint-N by its path")
    assert "Traceback" not in message
