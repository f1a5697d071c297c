"""The shipped data of the SmolLM2 example is what its script writes, and its parts share nothing."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from agentdock.servers.arithmetic import evaluate
from agentrl.config import RunConfig, SftConfig
from agentrl.tasks import load_tasks
from agentrl.tasks.dialogues import load_dialogues

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
DATA = EXAMPLES / "smollm2"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("make_data", DATA / "make_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_data"] = module
    spec.loader.exec_module(module)
    return module


def test_the_files_are_what_the_script_writes(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script, "HERE", tmp_path)
    for name, rows_of in script.FILES.items():
        script.write(name, rows_of())
        assert (tmp_path / name).read_bytes() == (DATA / name).read_bytes(), name


def largest_two(text: str) -> frozenset[int]:
    return frozenset(sorted(map(int, re.findall(r"\d+", text)))[-2:])


def test_dialogues_training_and_held_out_tasks_share_no_pair_of_numbers() -> None:
    asked = [dialogue.messages[1]["content"] for dialogue in load_dialogues(DATA / "dialogues.jsonl")]
    parts = [
        {largest_two(text) for text in texts if re.search(r"\d", text)}
        for texts in (
            asked,
            [task.query for task in load_tasks(DATA / "train.jsonl")],
            [task.query for task in load_tasks(DATA / "heldout.jsonl")],
        )
    ]
    assert all(parts)
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]


def test_the_dialogues_call_tools_as_they_are_and_answer_what_the_tool_said() -> None:
    names = set()
    for dialogue in load_dialogues(DATA / "dialogues.jsonl"):
        (call,) = dialogue.messages[2]["tool_calls"]
        names.add(call["function"]["name"])
        assert [call["function"]["name"]] == [tool.name for tool in dialogue.tools]
        answer = dialogue.messages[4]["content"].removeprefix("<answer>").removesuffix("</answer>")
        assert answer in dialogue.messages[3]["content"]
        if call["function"]["name"] == "calculator":
            assert evaluate(call["function"]["arguments"]["expression"]) == answer
    assert names == {"calculator", "lookup"}


def test_the_example_files_are_valid_and_belong_together() -> None:
    run = RunConfig.parse(["--config", str(EXAMPLES / "smollm2.yaml")], command="run")
    sft = SftConfig.parse(["--config", str(EXAMPLES / "smollm2_sft.yaml")])
    assert run.model.model_name_or_path == str(sft.folder)
    for path in (run.tasks.train_file, run.tasks.eval_file, sft.sft.train_file):
        assert (EXAMPLES.parent / path).is_file()
    assert run.rollout.num_generations * run.groups_per_step == 32


def test_help_of_the_new_commands_shows_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    for name, word in (("sft", "--supervise"), ("ask", "--mcp_manager_url")):
        module = importlib.import_module(f"agentrl.cli.{name}")
        with pytest.raises(SystemExit) as ended:
            module.main(["--help"])
        assert ended.value.code == 0
        assert word in capsys.readouterr().out


def test_rows_are_small_enough_to_ship() -> None:
    assert sum(path.stat().st_size for path in DATA.glob("*.jsonl")) < 600_000
    assert all(json.loads(line) for path in DATA.glob("*.jsonl") for line in path.read_text().splitlines())
