"""``agentrl eval``: which model under which options, and how episodes become a result."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agentrl.cli.evaluate import configured, lines_of, results_of
from agentrl.cli.preflight import check_before_evaluation
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.types import Outcome, Record, RecordStatus, Score, Task

SMALL = f"--model_name_or_path={TINY_MODEL_DIR}"


def trained(folder: Path, *steps: int, name: str = "r") -> Path:
    """A run folder with complete checkpoints, and options that an evaluation must not take over."""
    run = folder / name
    flags = [f"--run_name={name}", SMALL, "--train_file=t.jsonl", "--eval_file=e.jsonl", "--max_turns=7"]
    others = [
        f"--output_dir={folder}",
        "--engine_url=http://127.0.0.1:1",
        "--eval_strategy=no",
        f"--db_connection_string=sqlite:///{run}/x.db",
    ]
    RunConfig.parse([*flags, *others], command="test").save(run / "config.yaml")
    for step in steps:
        (run / f"checkpoint-{step}").mkdir()
        (run / f"checkpoint-{step}" / "COMPLETE").touch()
    return run


def test_the_newest_complete_checkpoint_of_a_run_is_evaluated_with_its_options(tmp_path: Path) -> None:
    run = trained(tmp_path, 2, 10, 9)
    (run / "checkpoint-11").mkdir()
    config = configured(["r", f"--output_dir={tmp_path}", "--seed=3"])
    assert config.model.model_name_or_path == str(run / "checkpoint-10")
    assert config.run.run_name == "r-eval-10"
    assert (config.rollout.max_turns, config.tasks.eval_file, config.run.seed) == (7, "e.jsonl", 3)
    assert not config.serve.await_weights


def test_store_engines_and_tasks_of_training_are_left_behind(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    config = configured(["r", f"--output_dir={tmp_path}"])
    assert config.store_url == f"sqlite:///{tmp_path}/r-eval-1/run.db"
    assert config.engine.engine_url == []
    assert config.tasks.train_file == ""
    assert config.evaluates
    given = configured(["r", f"--output_dir={tmp_path}", "--engine_url", "http://127.0.0.1:2"])
    assert given.engine.engine_url == ["http://127.0.0.1:2"]


def test_an_evaluation_that_is_repeated_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    (tmp_path / "r-eval-1").mkdir()
    assert configured(["r", f"--output_dir={tmp_path}"]).run.run_name == "r-eval-1-2"
    assert configured([f"--output_dir={tmp_path}", "--run_name=r", SMALL]).run.run_name == "r-2"


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    output = f"--output_dir={tmp_path}"
    with pytest.raises(ConfigError, match=r"none: .*holds no run"):
        configured(["none", output])
    trained(tmp_path)
    with pytest.raises(ConfigError, match=r"--model_name_or_path: .*no complete checkpoint"):
        configured(["r", output])
    with pytest.raises(ConfigError, match="--eval_file: an evaluation needs tasks"):
        check_before_evaluation(configured([output, SMALL]))


def record(task: str, slot: int, score: float | None, outcome: Outcome = Outcome.ANSWERED) -> Record:
    status = RecordStatus.UNSCORED if score is None else RecordStatus.SCORED
    scores = (Score(value=score, reason="no judge" if score is None else ""),)
    return Record(task=f"e/eval/0/{task}", slot=slot, attempt=0, status=status, outcome=outcome, scores=scores)


def test_every_episode_counts_also_the_broken_and_the_missing(tmp_path: Path) -> None:
    config = RunConfig.parse([f"--output_dir={tmp_path}", "--run_name=e", "--eval_generations=2"], command="test")
    tasks = [Task(task_id=name, query="q") for name in ("a/1", "b", "c")]
    records = [record("a/1", 0, 1.0), record("a/1", 1, 1.0), record("b", 0, None, Outcome.ERROR), record("b", 1, 0.0)]
    results = results_of(config, tasks, records)
    assert results["errors"] == 3
    assert results["outcomes"] == {"answered": 3, "error": 1, "missing": 2}
    headline = results["errors_count_as_wrong"]
    assert (headline["rollouts"], headline["questions"]) == (6, 3)
    assert headline["mean"] == pytest.approx(1 / 3)
    assert headline["stderr_clustered"] == pytest.approx(math.sqrt((4 / 3) ** 2 + 2 * (2 / 3) ** 2) / 6)
    assert results["finished_only"]["mean"] == pytest.approx(2 / 3)
    assert [r["score"] for r in json.loads(json.dumps(results))["records"]] == [1.0, 1.0, None, 0.0]
    outcomes, errors, _, success = lines_of(results)
    assert outcomes == "outcomes: 3 answered, 1 error, 2 missing"
    assert errors.startswith("3 episodes could not be scored and count as wrong; without them 0.667")
    assert success.startswith("success: 0.333 +- 0.272 (standard error clustered by question; 3 questions, 6 episodes)")


def test_nothing_scored_is_said_and_not_a_number(tmp_path: Path) -> None:
    config = RunConfig.parse([f"--output_dir={tmp_path}", "--run_name=e"], command="test")
    results = results_of(config, [Task(task_id="a", query="q")], [])
    assert "nothing is left" in lines_of(results)[1]
