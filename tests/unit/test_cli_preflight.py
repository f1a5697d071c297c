"""What is said before anything starts, the manifest, and the folder of a run."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured

from agentrl.cli.manifest import sha256_of, write_manifest
from agentrl.cli.preflight import check_before_start
from agentrl.cli.run import free_name, refuse_used_folder, with_config_flag
from agentrl.errors import ConfigError
from agentrl.models.tiny import TINY_MODEL_DIR


def write(path: Path, **row: Any) -> str:
    path.write_text(json.dumps({"id": path.stem, "query": "?", "answer": "3", "scorer": "exact"} | row) + "\n")
    return str(path)


@pytest.fixture
def train(tmp_path: Path) -> str:
    return f"--train_file={write(tmp_path / 'train.jsonl')}"


def refusal(tmp_path: Path, *flags: str) -> str:
    with pytest.raises(ConfigError) as raised:
        check_before_start(configured(tmp_path, *flags))
    return str(raised.value)


def test_what_a_run_needs_is_asked_for_by_the_name_of_the_option(tmp_path: Path, train: str) -> None:
    assert refusal(tmp_path, "--run_name=").startswith("--run_name: a run needs a name")
    assert refusal(tmp_path, "--model_name_or_path=").startswith("--model_name_or_path: a run needs a model")
    assert refusal(tmp_path).startswith("--train_file: a run needs tasks")
    assert refusal(tmp_path, "--train_file=none.jsonl").startswith("--train_file: no such file: none.jsonl")
    assert refusal(tmp_path, train, "--eval_file=none.jsonl").startswith("--eval_file: no such file: none.jsonl")
    assert refusal(tmp_path, train, "--mcp_manager_url=builtin:abacus").startswith("--mcp_manager_url: ")


def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(tmp_path: Path, train: str) -> None:
    flag = f"--model_name_or_path={tmp_path}"
    assert "it has no config.json" in refusal(tmp_path, train, flag)
    (tmp_path / "config.json").write_text("{}")
    assert "has no tokenizer.json (a fast tokenizer)" in refusal(tmp_path, train, flag)


def test_what_trainer_and_sampler_would_refuse_is_refused_before_they_start(tmp_path: Path, train: str) -> None:
    assert "DAPO is the token mean" in refusal(tmp_path, train, "--loss=DAPO", "--token_level_loss=false")
    assert refusal(tmp_path, train, "--torch_dtype=bfloat16").startswith("--torch_dtype: training computes in float32")
    said = refusal(tmp_path, train, "--resume_from_checkpoint=checkpoint-7")
    assert said.startswith("--resume_from_checkpoint: no such folder: checkpoint-7")
    said = refusal(tmp_path, train, "--mcp_manager_url=builtin:lookup", "--mcp_server_name", "lookup", "web")
    assert said.startswith("--mcp_server_name: no tool server 'web'; --mcp_manager_url gives lookup")
    assert "tool_call_parser" in refusal(tmp_path, train, "--tool_call_parser=morse")
    check_before_start(configured(tmp_path, train, "--mcp_manager_url=builtin:lookup", "--mcp_server_name=lookup"))


def test_an_unknown_scorer_is_named_with_its_task(tmp_path: Path) -> None:
    flag = f"--train_file={write(tmp_path / 'odd.jsonl', scorer='exakt')}"
    assert "odd.jsonl" in refusal(tmp_path, flag)
    assert "exakt" in refusal(tmp_path, flag)


def test_tasks_are_read_and_held_out_ones_only_where_they_are_evaluated(tmp_path: Path, train: str) -> None:
    held_out = f"--eval_file={write(tmp_path / 'heldout.jsonl')}"
    read = check_before_start(configured(tmp_path, train, held_out))
    assert [[task.task_id for task in tasks] for tasks in read] == [["train"], ["heldout"]]
    assert not check_before_start(configured(tmp_path, train, held_out, "--eval_strategy=no"))[1]
    assert not check_before_start(configured(tmp_path, train))[1]


def test_weights_have_to_be_there_readable_and_of_some_effect(tmp_path: Path) -> None:
    flag = "--task_sampling=weights"

    def file(name: str, **row: Any) -> str:
        return f"--train_file={write(tmp_path / f'{name}.jsonl', **row)}"

    said = refusal(tmp_path, file("bare"), flag)
    assert "--task_sampling weights: no task of" in said
    assert "bare.jsonl has a field weight, so all would be sampled equally often" in said
    assert "has weight 0: none would be sampled" in refusal(tmp_path, file("zero", weight=0), flag)
    said = refusal(tmp_path, file("text", weight="high"), flag)
    assert said == "--task_sampling weights: task text: weight 'high' is no number of 0 or more"
    check_before_start(configured(tmp_path, file("text", weight="high")))
    check_before_start(configured(tmp_path, file("row", weight=2.5), flag))
    check_before_start(configured(tmp_path, file("metadata", metadata={"weight": 3}), flag))


OWN_SCORER = """
from agentrl.scoring import MCPScorerFactory

def half(answer, truth):
    return 0.5

MCPScorerFactory.register_scorer("cli_test", half)
"""


def test_scorer_module_makes_its_scorers_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scorers_of_a_cli_test.py").write_text(OWN_SCORER)
    monkeypatch.syspath_prepend(str(tmp_path))
    flag = f"--train_file={write(tmp_path / 'own.jsonl', scorer='cli_test')}"
    assert "cli_test" in refusal(tmp_path, flag)
    train, _ = check_before_start(configured(tmp_path, flag, "--scorer_module=scorers_of_a_cli_test"))
    assert [task.scorer for task in train] == ["cli_test"]
    assert "--scorer_module" in refusal(tmp_path, flag, "--scorer_module=no_such_module")


# --- Folder and manifest -----------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run_is_used_again_only_to_go_on_with_it(tmp_path: Path) -> None:
    config = configured(tmp_path)
    refuse_used_folder(config)
    config.folder.mkdir()
    (config.folder / "run.db").touch()
    with pytest.raises(ConfigError, match=r"--run_name: .* holds a run already.*--resume_from_checkpoint auto"):
        refuse_used_folder(config)
    refuse_used_folder(configured(tmp_path, "--resume_from_checkpoint=auto"))


def test_the_quickstart_takes_the_first_free_name(tmp_path: Path) -> None:
    assert free_name(tmp_path / "none", "quickstart") == "quickstart"
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "quickstart-3").mkdir()
    assert free_name(tmp_path, "quickstart") == "quickstart-2"


def test_a_first_word_that_is_no_flag_is_the_configuration() -> None:
    assert with_config_flag(["run.yaml", "--seed=1"]) == ["--config", "run.yaml", "--seed=1"]
    assert with_config_flag(["--seed=1"]) == ["--seed=1"]
    assert with_config_flag([]) == []


def test_the_manifest_says_what_the_run_was_made_of_and_keeps_earlier_starts(tmp_path: Path, train: str) -> None:
    path = tmp_path / "manifest.json"
    write_manifest(configured(tmp_path, train, "--seed=7"), path)
    first = json.loads(path.read_text())
    assert first["seed"] == 7
    assert first["files"]["train_file"] == sha256_of(tmp_path / "train.jsonl")
    assert first["files"]["tokenizer"] == sha256_of(TINY_MODEL_DIR / "tokenizer.json")
    assert "eval_file" not in first["files"]
    assert first["packages"]["transformers"]
    assert first["code"]["distribution"] == "agentrl-mcp"
    write_manifest(configured(tmp_path, train, "--seed=8"), path)
    second = json.loads(path.read_text())
    assert [entry["seed"] for entry in second["history"]] == [7, 8]
    assert second["seed"] == 8
