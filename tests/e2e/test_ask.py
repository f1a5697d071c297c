"""`agentrl sft` then `agentrl ask` on the small model: from a lazy guesser to one that calls the calculator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.models.tiny import CALCULATOR, TINY_MODEL_DIR, questions
from agentrl.models.tiny_warm_start import good_dialogue

pytestmark = [pytest.mark.ci, pytest.mark.timeout(180)]

QUESTION = next(question for question in questions("heldout") if question.symbol == "+")


def agentrl(folder: Path, *words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", *words],
        cwd=folder,
        env=os.environ | {"COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the small model was taught to call the calculator, in output/taught."""
    folder = tmp_path_factory.mktemp("taught")
    rows = [{"messages": good_dialogue(question), "tools": [CALCULATOR]} for question in questions("warmup")[::40]]
    (folder / "dialogues.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, printed = agentrl(
        folder,
        *("sft", "--run_name=taught", "--train_file=dialogues.jsonl", f"--model_name_or_path={TINY_MODEL_DIR}"),
        *("--learning_rate=2e-3", "--per_device_train_batch_size=16", "--max_tokens=200", "--max_steps=40"),
    )
    assert code == 0, printed
    assert "left" in printed, "no time left is shown"
    return folder


def test_the_loss_falls_and_the_folder_loads(taught: Path) -> None:
    lines = (taught / "output" / "taught" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 40
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    folder = taught / "output" / "taught" / "checkpoint-40"
    AutoModelForCausalLM.from_pretrained(folder)
    assert PreTrainedTokenizerFast.from_pretrained(str(folder)).chat_template


def test_ask_shows_the_call_its_result_and_the_answer(taught: Path) -> None:
    code, printed = agentrl(
        taught, "ask", QUESTION.query, "--model_name_or_path=output/taught", "--default_prompt=false"
    )
    assert code == 0, printed
    shown = [line for line in printed.splitlines() if line.strip()]
    assert f"user       {QUESTION.query}" in shown
    call = next(place for place, line in enumerate(shown) if '"name": "calculator"' in line)
    result = shown.index(f"tool       calculator: {QUESTION.answer}")
    assert call < result < shown.index(f"answer     {QUESTION.answer}")
    assert any(line.startswith("answered: 2 turns, 1 tool calls") for line in shown)


def test_ask_alone_takes_the_shipped_model_and_the_calculator(tmp_path: Path) -> None:
    code, printed = agentrl(tmp_path, "ask", QUESTION.query)
    assert code == 0, printed
    assert "tools: calculator" in printed
    assert f"user       {QUESTION.query}" in printed
    assert "answered: " in printed
    assert list(tmp_path.iterdir()) == [], "ask leaves files behind"


def test_ask_uses_a_running_engine(taught: Path) -> None:
    model = str(taught / "output" / "taught" / "checkpoint-40")
    engine = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "serve", f"--model_name_or_path={model}", "--engine_slots=2"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
    )
    try:
        assert engine.stdout is not None
        url = engine.stdout.readline().split(" at ")[1].strip()
        flags = [f"--model_name_or_path={model}", f"--engine_url={url}", "--default_prompt=false"]
        code, printed = agentrl(taught, "ask", QUESTION.query, *flags)
        assert code == 0, printed
        assert f"answer     {QUESTION.answer}" in printed
    finally:
        engine.terminate()
        engine.wait(20)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ask"], "the question comes first"),
        (["ask", "--seed=1"], "the question comes first"),
        (["ask", "q", "--model_name_or_path=nowhere"], "nowhere is not the folder of a model"),
        (["ask", "q", "--mcp_manager_url=builtin:nothing"], "no built-in server 'nothing'"),
        (["sft", "--train_file=x"], "--run_name"),
        (["sft", "--run_name=x"], "--train_file"),
    ],
)
def test_what_is_missing_is_named_before_anything_starts(tmp_path: Path, words: list[str], message: str) -> None:
    code, printed = agentrl(tmp_path, *words)
    assert code == 2, printed
    assert message in printed


def test_an_engine_that_is_not_there_is_said_and_the_exit_code_is_1(tmp_path: Path) -> None:
    code, printed = agentrl(tmp_path, "ask", "q", "--engine_url=http://127.0.0.1:9")
    assert code == 1, printed
    assert "Traceback" not in printed
    assert "127.0.0.1:9" in printed
    code, printed = agentrl(tmp_path, "ask", QUESTION.query, "--episode_timeout=1e-9")
    assert code == 1, printed
    assert "--episode_timeout" in printed
