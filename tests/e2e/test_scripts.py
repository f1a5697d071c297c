"""The example scripts: what they start for which environment, their logs, how they end; and what a checkout ships."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pages import ROOT
from runs import Run

from agentrl.config import RunConfig
from agentrl.models.tiny import TINY_MODEL_DIR, make_tasks

SCRIPTS = ("grpo_example.sh", "minirl_example.sh", "eval_example.sh")
TRAINING = SCRIPTS[:2]
VARIABLES = (
    "MODEL_PATH EVAL_FILE MCP_MANAGER_URL AGENT_CONFIG DB NUM_PROCESSES NUM_MACHINES MACHINE_RANK "
    "MASTER_ADDR MASTER_PORT NCCL_* SWANLAB_* LOG_LEVEL PYTHON"
).split()
RECORDER = """#!/bin/sh
printf '%s\\n' "$@" > arguments
printf '%s' "$NCCL_DEBUG$SWANLAB_MODE$LOG_LEVEL" > variables
echo said; echo warned >&2
exit 7
"""


def script(folder: Path, name: str, *words: str, timeout: float = 300, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(ROOT / name), *words],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    return done.returncode, done.stdout


def recorded(folder: Path, name: str, *words: str, **variables: str) -> list[str]:
    """The arguments that the script gives to its interpreter."""
    recorder = folder / "recorder"
    recorder.write_text(RECORDER)
    recorder.chmod(0o755)
    assert script(folder, name, *words, PYTHON=str(recorder), **variables) == (7, "said\nwarned\n")
    return (folder / "arguments").read_text().splitlines()


def parsed(arguments: list[str]) -> RunConfig:
    return RunConfig.parse(arguments, command="test")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_without_a_name_says_how_it_is_used(name: str, tmp_path: Path) -> None:
    for words in ([], ["--max_steps=3"]):
        code, printed = script(tmp_path, name, *words)
        assert code == 2
        assert "RUN_NAME" in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_names_every_variable_and_nothing_is_killed_by_name(name: str) -> None:
    text = (ROOT / name).read_text()
    header = text.partition("set -euo pipefail")[0]
    wanted = [*VARIABLES, "TRAIN_FILE"] if name in TRAINING else [*VARIABLES, "BASE_URL"]
    assert [variable for variable in wanted if variable not in header] == []
    assert not re.search(r"pkill|killall|fuser|<YOUR", text + (ROOT / "assets" / "launch.sh").read_text())


@pytest.mark.parametrize(("name", "loss"), [("grpo_example.sh", "GRPO"), ("minirl_example.sh", "MINIRL")])
def test_one_process_is_the_trainer_itself_with_the_recommended_options(name: str, loss: str, tmp_path: Path) -> None:
    module, program, command, *flags = recorded(tmp_path, name, "r", "--seed=5", NCCL_DEBUG="INFO", SWANLAB_MODE="x")
    assert (module, program, command) == ("-m", "agentrl", "train")
    config = parsed(flags)
    assert (config.run.run_name, config.run.seed, config.run.enable_sampling) == ("r", 5, True)
    sequence_level = loss == "MINIRL"
    algo = config.algo
    assert algo.loss_calculater == loss
    assert algo.token_level_loss is not sequence_level
    assert (algo.strict_in_bound, algo.skip_length_normalization) == (sequence_level, sequence_level)
    assert Path(config.model.model_name_or_path).samefile(TINY_MODEL_DIR)
    assert (tmp_path / "variables").read_text() == "INFOx"
    assert (tmp_path / "logs/as/r_train_0.log").read_text() == "said\nwarned\n"


@pytest.mark.parametrize("name", TRAINING)
def test_variables_name_model_files_tools_and_store(name: str, tmp_path: Path) -> None:
    given = {
        "MODEL_PATH": "m",
        "TRAIN_FILE": "t",
        "EVAL_FILE": "",
        "MCP_MANAGER_URL": "stdio:python s.py",
        "DB": "sqlite:///x",
    }
    config = parsed(recorded(tmp_path, name, "r", **given)[3:])
    assert (config.model.model_name_or_path, config.tasks.train_file, config.tasks.eval_file) == ("m", "t", "")
    assert (config.tools.mcp_manager_url, config.store_url) == (["stdio:python s.py"], "sqlite:///x")
    assert config.rollout.max_new_tokens > 1000, "the sizes are still those of the small model"


@pytest.mark.parametrize("name", TRAINING)
def test_several_processes_are_started_by_accelerate(name: str, tmp_path: Path) -> None:
    node = {"NUM_PROCESSES": "4", "NUM_MACHINES": "2", "MACHINE_RANK": "1", "MASTER_ADDR": "first", "MASTER_PORT": "12"}
    words = recorded(tmp_path, name, "r", **node)
    assert words[:2] == ["-m", "accelerate.commands.launch"]
    launcher, flags = words[2 : words.index("agentrl") - 1], words[words.index("agentrl") + 2 :]
    assert dict(zip(launcher[::2], launcher[1::2], strict=True)) == {
        "--config_file": str(ROOT / "assets" / "fsdp2_dst.yml"),
        "--num_processes": "8",
        "--num_machines": "2",
        "--machine_rank": "1",
        "--main_process_ip": "first",
        "--main_process_port": "12",
    }
    assert flags[:2] == ["--data_parallel_size", "8"]
    assert (tmp_path / "logs/as/r_train_1.log").read_text() == "said\nwarned\n"


def test_an_evaluation_takes_the_run_or_a_model_or_an_engine(tmp_path: Path) -> None:
    assert recorded(tmp_path, "eval_example.sh", "r", "--seed=2") == ["-m", "agentrl", "eval", "r", "--seed=2"]
    config = parsed(recorded(tmp_path, "eval_example.sh", "r", MODEL_PATH="m", BASE_URL="http://127.0.0.1:1")[3:])
    assert (config.run.run_name, config.model.model_name_or_path) == ("r", "m")
    assert config.engine.engine_url == ["http://127.0.0.1:1"]
    assert (tmp_path / "logs/as/r_eval_0.log").exists()


def test_requirements_are_plain_wheels_and_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert sorted(lines) == sorted([*project["dependencies"], *project["optional-dependencies"]["train"]])
    assert all(re.fullmatch(r"[a-z0-9-]+[<>=.,0-9]+", line) for line in lines)


CHECK = "import agentrl.models, agentrl.rollout.sampler; print('All dependencies working')"


def self_check(before: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"CUDA_VISIBLE_DEVICES": ""}
    code = f"import sys; sys.path.insert(0, 'src'); {before}{CHECK}"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60
    )


def test_the_self_check_needs_no_gpu_no_database_and_no_installation() -> None:
    assert self_check("").stdout == "All dependencies working\n"


def test_the_self_check_fails_without_torch_and_names_the_distribution() -> None:
    hide = "import importlib.util as u; find = u.find_spec; u.find_spec = lambda n: None if n == 'torch' else find(n); "
    done = self_check(hide)
    assert done.returncode == 1
    assert "needs torch: pip install 'agentrl-mcp[train]'" in done.stderr


@pytest.mark.parametrize(("split", "name", "count"), [("train", "sums_train", 1000), ("heldout", "sums_heldout", 64)])
def test_the_shipped_tasks_are_of_the_small_models_world(split: str, name: str, count: int) -> None:
    lines = (ROOT / "assets" / f"{name}.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == make_tasks(split, count, seed=0)  # type: ignore[arg-type]


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_run_that_is_asked_to_stop_saves_its_step_and_goes_on(tmp_path: Path) -> None:
    command = [str(ROOT / "grpo_example.sh"), "stopped", "--save_steps=100"]
    environ = os.environ | {"PYTHON": sys.executable, "EVAL_FILE": ""}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    run = Run(tmp_path, "stopped", process)
    run.wait_for_step(2)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=90)
    assert process.returncode == 130, printed
    log = tmp_path / "logs/as/stopped_train_0.log"
    assert log.read_text() == printed
    assert "interrupted" in printed
    saved = max(step["step"] for step in run.steps())
    assert (run.output / f"checkpoint-{saved:.0f}" / "COMPLETE").is_file()

    flags = ["--resume_from_checkpoint=auto", f"--max_steps={saved + 2:.0f}"]
    code, printed = script(tmp_path, "grpo_example.sh", "stopped", *flags, EVAL_FILE="")
    assert code == 0, printed + run.logs()
    assert [step["step"] for step in run.steps()] == list(range(1, int(saved) + 3))
    assert log.read_text().endswith(printed)


@pytest.mark.ci
@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not (ROOT / "assets" / "fsdp2_dst.yml").exists(), reason="training on several processes is not on this branch yet"
)
def test_two_processes_train_one_run(tmp_path: Path) -> None:
    flags = [
        "--max_steps=2",
        "--save_steps=2",
        "--device=cpu",
        "--per_device_train_batch_size=16",
    ]
    code, printed = script(tmp_path, "grpo_example.sh", "two", *flags, NUM_PROCESSES="2")
    run = Run(tmp_path, "two")
    assert code == 0, printed + run.logs()
    assert [step["step"] for step in run.steps()] == [1, 2]
    assert (run.output / "checkpoint-2" / "COMPLETE").is_file()


@pytest.mark.ci
@pytest.mark.timeout(300)
def test_a_model_and_an_engine_are_evaluated_alike(tmp_path: Path) -> None:
    (tmp_path / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_tasks("heldout", 8, seed=1)))
    greedy = ['--eval_sampling_params={"temperature": 0}', "--default_prompt=false", "--max_turns=3"]
    small = ["--max_new_tokens=48", "--max_prompt_tokens=256"]
    given = {"EVAL_FILE": "few.jsonl", "MODEL_PATH": str(TINY_MODEL_DIR)}
    code, printed = script(tmp_path, "eval_example.sh", "model", *greedy, *small, **given)
    assert code == 0, printed
    assert printed.splitlines()[-1].startswith("success: ")
    serving = subprocess.Popen(
        [sys.executable, "-m", "agentrl", "serve", f"--model_name_or_path={TINY_MODEL_DIR}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert serving.stdout is not None
        url = serving.stdout.readline().split()[-1]
        code, printed = script(tmp_path, "eval_example.sh", "engine", *greedy, *small, **given, BASE_URL=url)
        assert code == 0, printed
        code, again = script(tmp_path, "eval_example.sh", "engine", *greedy, *small, **given, BASE_URL=url)
    finally:
        serving.send_signal(signal.SIGTERM)
        serving.wait(20)
    assert (code, "output/engine-2/results.json" in again) == (0, True)
    assert not (tmp_path / "output" / "engine" / "logs" / "engine.log").exists()
    results = [json.loads((tmp_path / "output" / name / "results.json").read_text()) for name in ("model", "engine")]
    answers = [[(r["id"].split("/", 1)[1], r["answer"], r["score"]) for r in each["records"]] for each in results]
    assert sorted(answers[0]) == sorted(answers[1])
    assert results[0]["errors_count_as_wrong"] == results[1]["errors_count_as_wrong"]
