"""The path of several ranks on one GPU: a group of one rank over nccl shards, sums, gathers and saves."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """
import os, sys, threading
from pathlib import Path
import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from trainer_help import KeepingPublisher, plan, random_rows, write_model
from agentrl.config import AlgoOptions, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.parallel import ONE_RANK, Launch
from agentrl.parallel.fsdp import Sharding
from agentrl.parallel.join import SeveralRanks, device_kind
from agentrl.telemetry import Telemetry
from agentrl.trainer.batches import ScriptedBatchSource
from agentrl.trainer.loop import TrainConfig, train
from agentrl.trainer.shared import SharedPublisher, SharedSource

folder, launch, stop = Path(sys.argv[1]), Launch.of(os.environ), threading.Event()
kind = device_kind("cuda", launch)
distributed.init_process_group("nccl")
control = distributed.new_group(backend="gloo")
ranks = SeveralRanks(launch, control, init_device_mesh(kind, (launch.world_size,)), Sharding(), stop)
model = write_model(folder / "model")
batches = [plan(random_rows(seed), budget=50) for seed in range(4)]

def weights(name, group, resume=""):
    options = TrainConfig(
        folder=folder / name, total_steps=4, model=ModelOptions(model_name_or_path=str(model), device="cuda"),
        optim=OptimOptions(learning_rate=1e-3, max_grad_norm=0.05), algo=AlgoOptions(),
        checkpoint=CheckpointOptions(save_steps=2), gap_limits=None, resume=resume,
    )
    publisher = KeepingPublisher()
    source = SharedSource(group, ScriptedBatchSource(batches))
    train(options, source, SharedPublisher(group, publisher), Telemetry([]), None, group)
    return publisher.weights

alone, sharded = weights("alone", ONE_RANK), weights("sharded", ranks)
again = weights("again", ranks, str(folder / "alone/checkpoint-2"))
back = weights("back", ONE_RANK, str(folder / "sharded/checkpoint-2"))
for other in (sharded, again, back):
    for name, tensor in alone[4].items():
        torch.testing.assert_close(other[4][name].cpu(), tensor.cpu(), rtol=1e-5, atol=1e-6)
print("EQUAL", flush=True)
distributed.destroy_process_group()
"""


def test_a_sharded_policy_trains_and_restores_as_the_whole_one_over_nccl(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    launched = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(Path(__file__).parent)])
    seen = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | launched | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "EQUAL" in seen.stdout, seen.stderr[-6000:]
