"""kill -9 of a process in mid-run: the run fails by name, and goes on where it stood, to the same weights."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from runs import SCRIPTED, Run, write_tasks
from safetensors.torch import load_file

pytestmark = pytest.mark.timeout(300)

NUM_STEPS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kills")


@pytest.fixture(scope="module")
def options(folder: Path) -> dict[str, str]:
    return SCRIPTED | write_tasks(folder) | {"max_steps": str(NUM_STEPS)}


@pytest.fixture(scope="module")
def undisturbed(folder: Path, options: dict[str, str]) -> Run:
    run = Run(folder, "undisturbed").start(options)
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    return run


def weights(run: Run) -> dict[str, bytes]:
    tensors = load_file(run.output / f"checkpoint-{NUM_STEPS}" / "model.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


@pytest.mark.ci
@pytest.mark.parametrize("victim", ["sampler", "engine", "trainer"])
def test_a_killed_process_fails_the_run_by_name_and_the_resumed_run_ends_with_the_same_weights(
    folder: Path, options: dict[str, str], undisturbed: Run, victim: str
) -> None:
    run = Run(folder, f"killed-{victim}").start(options)
    run.wait_for_step(3)
    finished = {record.id for record in run.ask(lambda store: store.find("record", status="scored"))}
    os.kill(run.pid_of(victim), signal.SIGKILL)
    killed = time.monotonic()
    code, printed = run.end()
    assert code == 1
    assert time.monotonic() - killed < 30
    assert f"the {victim} process was killed by SIGKILL" in printed
    assert f"logs/{victim}.log" in printed
    assert f"go on with --run_name killed-{victim} --resume_from_checkpoint auto" in printed

    code, printed = run.start(options, "--resume_from_checkpoint=auto").end()
    assert code == 0, printed + run.logs()
    assert "held-out success: " in printed.splitlines()[-1]
    assert weights(run) == weights(undisturbed)
    kept = {record.id for record in run.ask(lambda store: store.find("record", status="scored"))}
    assert finished <= kept
    check_each_slot_is_trained_once(run)


def check_each_slot_is_trained_once(run: Run) -> None:
    trained = run.ask(lambda store: store.find("row", status="trained"))
    assert all(row.trained_count == 1 for row in trained)
    assert len({(row.task, row.slot) for row in trained}) == len(trained)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_trainer_that_is_killed_three_times_ends_with_the_same_weights(
    folder: Path, options: dict[str, str], undisturbed: Run
) -> None:
    run = Run(folder, "killed-thrice").start(options)
    for step in (2, 3, 5):
        run.wait_for_step(step)
        os.kill(run.pid_of("trainer"), signal.SIGKILL)
        code, printed = run.end()
        assert code == 1
        assert "the trainer process was killed by SIGKILL" in printed
        run.start(options, "--resume_from_checkpoint=auto")
    code, printed = run.end()
    assert code == 0, printed + run.logs()
    assert weights(run) == weights(undisturbed)
    check_each_slot_is_trained_once(run)


@pytest.mark.ci
def test_ctrl_c_saves_the_step_in_progress_and_the_run_goes_on(
    folder: Path, options: dict[str, str], undisturbed: Run
) -> None:
    run = Run(folder, "interrupted").start(options | {"save_steps": "100"})
    run.wait_for_step(2)
    assert run.process is not None
    run.process.send_signal(signal.SIGINT)
    code, printed = run.end()
    assert code == 130, printed + run.logs()
    assert list(run.output.glob("checkpoint-*"))
    code, printed = run.start(options, "--resume_from_checkpoint=auto").end()
    assert code == 0, printed + run.logs()
    assert weights(run) == weights(undisturbed)
