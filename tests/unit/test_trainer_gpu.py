import dataclasses
from pathlib import Path

import pytest
import torch
from trainer_help import KeepingPublisher, gradients, model, plan, random_rows, relative, write_model

from agentrl.config import AlgoOptions, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.telemetry import Telemetry
from agentrl.trainer.batches import ScriptedBatchSource
from agentrl.trainer.loop import TrainConfig, train

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral"])
def test_tree_and_rows_agree_on_the_gpu_and_with_the_cpu(family: str, tmp_path: Path) -> None:
    policy = model(tmp_path / "gpu", family, device="cuda", gradient_checkpointing=True)
    reference = model(tmp_path / "cpu", family)
    rows = random_rows(0)
    tree, tree_grads = gradients(policy, plan(rows))
    unfolded, unfolded_grads = gradients(policy, plan(rows, sharing="none"))
    cpu, cpu_grads = gradients(reference, plan(rows))
    assert tree.results()["loss"] == pytest.approx(unfolded.results()["loss"], rel=1e-5)
    assert tree.results()["loss"] == pytest.approx(cpu.results()["loss"], rel=1e-5)
    for name, grad in tree_grads.items():
        assert relative(grad, unfolded_grads[name]) <= 1e-5, name
        assert relative(grad.cpu(), cpu_grads[name]) <= 1e-5, name


def test_a_run_on_the_gpu_goes_on_where_it_was_saved(tmp_path: Path) -> None:
    batches = [plan(random_rows(seed)) for seed in range(4)]
    options = TrainConfig(
        folder=tmp_path / "run",
        total_steps=4,
        model=ModelOptions(model_name_or_path=str(write_model(tmp_path / "m")), device="cuda"),
        optim=OptimOptions(learning_rate=1e-3),
        algo=AlgoOptions(),
        checkpoint=CheckpointOptions(save_steps=2),
        gap_limits=None,
    )
    straight, resumed = KeepingPublisher(), KeepingPublisher()
    train(options, ScriptedBatchSource(batches), straight, Telemetry([]))
    again = dataclasses.replace(options, resume=str(tmp_path / "run/checkpoint-2"))
    train(again, ScriptedBatchSource(batches), resumed, Telemetry([]))
    assert sorted(resumed.weights) == [2, 3, 4]
    for name, weights in resumed.weights[4].items():
        torch.testing.assert_close(weights, straight.weights[4][name], rtol=1e-5, atol=1e-6)
