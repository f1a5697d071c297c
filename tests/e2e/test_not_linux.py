"""Without what only Linux has, everything still imports and runs; what is lost is said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOT_LINUX = Path(__file__).with_name("not_linux")


def python(code: str, folder: Path) -> str:
    path = os.pathsep.join([str(NOT_LINUX), str(folder), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_weights_go_through_a_folder_on_disk_and_that_is_said(tmp_path: Path) -> None:
    printed = python(
        "import logging, sys; logging.basicConfig(); assert sys.platform == 'darwin'\n"
        "from agentrl.weights.disk import ipc_folder; print(ipc_folder('r'))",
        tmp_path,
    )
    assert "/dev/shm is not there" in printed
    assert "written to disk" in printed


def test_scorers_run_in_workers_and_their_ends_are_told(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import os\ndef good(a, t): return 1\ndef dies(a, t): os._exit(3)\n")
    code = (
        "import asyncio; from agentrl.scoring import score_answer\n"
        "for name in ('own:good', 'own:dies', 'math'):\n"
        "    score = asyncio.run(score_answer(name, '1/2', '0.5')); print(score.value, score.reason)"
    )
    good, dies, math = python(code, tmp_path).splitlines()
    assert good.strip() == "1.0"
    assert dies.startswith("None")
    assert "exit code 3" in dies
    assert math.strip() == "1.0"


def test_the_store_opens_without_a_table_of_mounts_and_finds_dead_processes(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, subprocess, sys; from agentrl.store import open_store\n"
        "from agentrl.store.registry import process_lives\n"
        "gone = subprocess.Popen([sys.executable, '-c', '']); gone.wait()\n"
        "asyncio.run(open_store('sqlite:///r.db', run='r').open())\n"
        "print(process_lives(os.getpid()), process_lives(gone.pid), flush=True); os._exit(0)"
    )
    assert "True False" in python(code, tmp_path)


@pytest.mark.skipif(shutil.which("ps") is None, reason="processes are counted by ps, which this machine lacks")
def test_sandboxed_code_runs_and_may_start_processes(tmp_path: Path) -> None:
    code = (
        "import asyncio; from agentdock.sandbox.limits import Limits; from agentdock.sandbox.run import Sandbox\n"
        "run = Sandbox(Limits(), parallel=1).run\n"
        'asked = \'import subprocess; print(subprocess.run(["echo", "started"], capture_output=True).stdout)\'\n'
        "done = asyncio.run(run(asked))\n"
        "print(done.stdout, done.stderr, done.containment.own_user)"
    )
    assert "b'started\\n'" in (printed := python(code, tmp_path))
    assert "False" in printed


@pytest.mark.ci
@pytest.mark.timeout(200)
def test_a_whole_run_trains(tmp_path: Path) -> None:
    path = os.pathsep.join([str(NOT_LINUX), os.environ["PYTHONPATH"]])
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "quickstart", "--max_steps=2"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "held-out success: " in done.stdout
