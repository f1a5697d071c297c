"""``agentrl train`` under torchrun and accelerate on a real store with the scripted engine: the run of one rank."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from runs import SCRIPTED, flags_of, write_tasks

pytestmark = [pytest.mark.ci, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "agentrl")
ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--config_file", str(ROOT / "assets/fsdp2_dst.yml")),
    *("--main_process_port", "0", "-m", "agentrl"),
)
ALONE = ("-m", "agentrl")
COMPARED = ("loss", "grad_norm", "reward", "trained_tokens", "groups", "lr", "kl/k1", "ratio/max", "ess")


def start(folder: Path, launcher: tuple[str, ...], *flags: str) -> subprocess.Popen[str]:
    options = SCRIPTED | write_tasks(folder, num_train=8) | {"eval_strategy": "no"}
    return subprocess.Popen(
        [sys.executable, *launcher, "train", *flags_of(options), *flags],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT / "tests/e2e")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def train(folder: Path, launcher: tuple[str, ...], *flags: str) -> str:
    process = start(folder, launcher, *flags)
    try:
        printed, _ = process.communicate(timeout=180)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, printed[-6000:]
    return printed


def steps(folder: Path, run: str) -> list[dict[str, Any]]:
    path = folder / "output" / run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [event for line in lines if (event := json.loads(line))["kind"] == "step"]


def test_both_launchers_train_the_run_of_one_rank_and_go_on_from_each_other(tmp_path: Path) -> None:
    train(tmp_path, ALONE, "--run_name=one")
    train(tmp_path, ACCELERATE, "--run_name=two", "--max_steps=2")
    assert [event["step"] for event in steps(tmp_path, "two")] == [1, 2]
    train(tmp_path, TORCHRUN, "--run_name=two", "--resume_from_checkpoint=auto")

    one, two = steps(tmp_path, "one"), steps(tmp_path, "two")
    assert [event["step"] for event in two] == [event["step"] for event in one] == [1, 2, 3, 4]
    for ours, theirs in zip(two, one, strict=True):
        for name in COMPARED:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-5, abs=1e-7), (ours["step"], name)
        assert ours["batch/microbatches"] > theirs["batch/microbatches"], "both ranks are to have work"
    assert len({event["loss"] for event in one}) == 4
    configured = (tmp_path / "output/two/config.yaml").read_text()
    assert "data_parallel_size: 2" in configured, "the sampler is to admit by the same groups per step"
    assert (tmp_path / "output/two/checkpoint-4/state").is_dir()


def test_sigterm_to_the_launcher_saves_the_step_once(tmp_path: Path) -> None:
    process = start(tmp_path, TORCHRUN, "--run_name=stopped", "--save_steps=100", "--num_train_epochs=50")
    try:
        deadline = time.monotonic() + 120
        while not steps(tmp_path, "stopped"):
            assert process.poll() is None, process.communicate()[0][-6000:]
            assert time.monotonic() < deadline, "no step came"
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    run = tmp_path / "output/stopped"
    (saved,) = run.glob("checkpoint-*")
    assert (saved / "COMPLETE").is_file()
    assert saved.name == f"checkpoint-{steps(tmp_path, 'stopped')[-1]['step']}"
    assert printed.count("agentrl: stopped after step") == 2, printed[-6000:]


def test_a_wrong_setting_ends_all_ranks_before_anything_starts(tmp_path: Path) -> None:
    process = start(tmp_path, TORCHRUN, "--run_name=wrong", "--data_parallel_size=4")
    printed, _ = process.communicate(timeout=90)
    assert process.returncode != 0
    assert "--data_parallel_size: 4 ranks are set" in printed
    assert "the launcher started 2: give --data_parallel_size 2" in printed
    assert not (tmp_path / "output").exists()
