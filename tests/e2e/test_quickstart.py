"""The quickstart as a newcomer runs it, and MINIRL on the same line: real engine, real tools, real training."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runs import Run
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]

MINIRL = "--loss_calculater=MINIRL --token_level_loss=false --strict_in_bound=true --skip_length_normalization=true"


def quickstart(folder: Path, *flags: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "quickstart", *flags],
        cwd=folder,
        env=os.environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return done.returncode, done.stdout + done.stderr


def held_out_success(printed: str) -> tuple[float, float]:
    found = re.fullmatch(r"held-out success: (\d\.\d{3}) -> (\d\.\d{3})", printed.splitlines()[-1])
    assert found is not None, printed
    return float(found[1]), float(found[2])


def test_the_quickstart_learns_and_what_it_leaves_can_be_used(tmp_path: Path) -> None:
    code, printed = quickstart(tmp_path)
    assert code == 0, printed
    before, after = held_out_success(printed)
    assert after - before >= 0.5
    assert "before training" in printed
    assert "after training" in printed
    assert printed.splitlines()[-2] == "run folder: output/quickstart"

    run = Run(tmp_path, "quickstart")
    steps = run.steps()
    assert [step["step"] for step in steps] == list(range(1, len(steps) + 1))
    compared = [step for step in steps if step["logprob_gap_tokens"]]
    assert sum(step["logprob_gap_tokens"] for step in compared) > 1000
    assert max(step["logprob_gap_max"] for step in compared) <= 1e-4
    assert all(version.canary_difference <= 1e-4 for version in run.ask(lambda store: store.find("version")))
    turns = run.ask(lambda store: store.find("turn"))
    assert any(len(turn.version_spans) > 1 for turn in turns), "no weights changed with a request in flight"

    checkpoint = run.output / f"checkpoint-{len(steps)}"
    AutoModelForCausalLM.from_pretrained(checkpoint)
    assert PreTrainedTokenizerFast.from_pretrained(str(checkpoint)).chat_template
    assert (run.output / "config.yaml").exists()
    assert (run.output / "manifest.json").exists()


def test_minirl_trains_on_the_same_line_and_the_run_can_be_repeated_from_its_config(tmp_path: Path) -> None:
    code, printed = quickstart(tmp_path, "--run_name=minirl", "--max_steps=6", *MINIRL.split())
    assert code == 0, printed
    held_out_success(printed)
    run = Run(tmp_path, "minirl")
    assert len(run.steps()) == 6
    again = Run(tmp_path, "again").start({"config": "output/minirl/config.yaml", "run_name": "again", "max_steps": "2"})
    code, printed = again.end(timeout=200)
    assert code == 0, printed + again.logs()
    assert len(again.steps()) == 2


def test_a_complete_run_is_resumed_to_its_result_and_trains_nothing_more(tmp_path: Path) -> None:
    flags = ["--run_name=twice", "--max_steps=3"]
    code, printed = quickstart(tmp_path, *flags)
    assert code == 0, printed
    first = held_out_success(printed)
    code, printed = quickstart(tmp_path, *flags, "--resume_from_checkpoint=auto")
    assert code == 0, printed
    assert held_out_success(printed) == first
    assert len(Run(tmp_path, "twice").steps()) == 3
