"""Which options ``agentrl ask`` plays with: those given, those of the model's run, those of the shipped model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from agentrl.cli.ask import DEFAULT_TOKENS, question_of, with_defaults
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.tiny import TINY_MODEL_DIR

TOOLS = "--mcp_manager_url=builtin:lookup"


def test_without_options_it_is_the_shipped_model_and_the_calculator() -> None:
    config = with_defaults([])
    assert config.model.model_name_or_path == str(TINY_MODEL_DIR)
    assert config.tools.mcp_manager_url == ["builtin:calculator"]
    assert config.tasks.default_prompt is False


def test_what_is_given_wins_in_flags_and_in_a_file(tmp_path: Path) -> None:
    config = with_defaults([f"--model_name_or_path={TINY_MODEL_DIR}", TOOLS, "--max_new_tokens=7"])
    assert config.tools.mcp_manager_url == ["builtin:lookup"]
    assert config.tasks.default_prompt is True
    assert config.rollout.max_new_tokens == 7
    file = tmp_path / "c.yaml"
    file.write_text("mcp_manager_url: [builtin:python]\n")
    config = with_defaults(["--config", str(file)])
    assert config.tools.mcp_manager_url == ["builtin:python"]
    assert config.rollout.max_new_tokens == 48


def test_another_model_gets_a_limit_and_the_default_prompt() -> None:
    config = with_defaults([f"--model_name_or_path={TINY_MODEL_DIR}"])
    assert config.rollout.max_new_tokens == DEFAULT_TOKENS
    assert config.tasks.default_prompt is True


@pytest.mark.parametrize("named", ["output/run", "output/run/checkpoint-3"])
def test_a_model_of_a_run_is_asked_as_the_run_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = tmp_path / "output" / "run" / "checkpoint-3"
    shutil.copytree(TINY_MODEL_DIR, checkpoint)
    (checkpoint / "COMPLETE").touch()
    flags = ["--run_name=run", TOOLS, "--default_prompt=false", "--max_turns=4", "--max_context=99"]
    RunConfig.parse(flags, command="run").save(tmp_path / "output" / "run" / "config.yaml")
    config = with_defaults([f"--model_name_or_path={named}", "--max_turns=5"])
    assert config.model.model_name_or_path == "output/run/checkpoint-3"
    assert config.tools.mcp_manager_url == ["builtin:lookup"]
    assert (config.tasks.default_prompt, config.engine.max_context) == (False, 99)
    assert config.rollout.max_turns == 5, "flags win"
    assert config.run.run_name == "", "ask belongs to no run"


def test_the_question_comes_first() -> None:
    assert question_of(["What?", "--seed=1"]) == ("What?", ["--seed=1"])
    for words in ([], ["--seed=1", "What?"]):
        with pytest.raises(ConfigError, match="the question comes first"):
            question_of(words)
