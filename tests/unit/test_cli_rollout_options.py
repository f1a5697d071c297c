"""Each option of rollouts, tasks, tools and pacing, from its flag to what it changes in a sampler's work."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from cli_help import ANSWER, CALL, SUM, configured, play, questions

from agentrl.chat import load_renderer
from agentrl.cli.sample import build_toolset
from agentrl.errors import ConfigError
from agentrl.tools.scripted import ScriptedTool
from agentrl.types import CallStatus, RecordStatus, ToolCall


def always(text: str) -> Any:
    return lambda record, turn: text


# --- How much is sampled -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2, 3])
def test_num_generations_is_the_size_of_a_training_group(tmp_path: Path, number: int) -> None:
    played = play(tmp_path, f"--num_generations={number}", train=questions(2))
    assert [record.slot for record in played.records] == [*range(number)] * 2


def test_eval_generations_is_the_size_of_a_held_out_group(tmp_path: Path) -> None:
    played = play(tmp_path, "--eval_generations=3", held_out=questions())
    assert len(played.records) == 3
    assert not played.rows


def test_num_train_epochs_samples_every_task_so_often(tmp_path: Path) -> None:
    played = play(tmp_path, "--num_train_epochs=2", "--max_staleness=9")
    assert sorted(task.epoch for task in played.tasks) == [0, 1]
    assert len(played.records) == 4


@pytest.mark.parametrize("target", [2, 4])
def test_target_concurrency_is_the_number_of_requests_in_flight(tmp_path: Path, target: int) -> None:
    flags = (f"--target_concurrency={target}", "--max_staleness=9")
    assert play(tmp_path, *flags, train=questions(4), seconds=60.0, stop_after=1.0).engine.most == target


@pytest.mark.parametrize("ahead", [0, 2])
def test_max_staleness_bounds_the_groups_that_start_before_a_step(tmp_path: Path, ahead: int) -> None:
    flags = (f"--max_staleness={ahead}", "--groups_per_step=1")
    played = play(tmp_path, *flags, train=questions(5), stop_after=1.0)
    assert len(played.records) == 2 * (ahead + 1)


def test_groups_per_step_admits_whole_steps(tmp_path: Path) -> None:
    flags = ("--sync_sampling", "--groups_per_step=3")
    assert len(play(tmp_path, *flags, train=questions(5), stop_after=1.0).records) == 2 * 3


@pytest.mark.parametrize(("flags", "groups"), [((), 3), (("--retrained_interval=2",), 2)])
def test_reuse_paces_sampling_by_the_steps_that_take_fresh_groups(
    tmp_path: Path, flags: tuple[str, ...], groups: int
) -> None:
    """Of the first three steps; one use each would let all three groups start."""
    uses = "--max_trained_count=2" if flags else "--max_trained_count=1"
    more = ("--groups_per_step=1", "--max_staleness=2", uses, *flags)
    assert len(play(tmp_path, *more, train=questions(5), stop_after=1.0).records) == 2 * groups


# --- What an episode may do --------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 3])
def test_max_turns_ends_an_episode(tmp_path: Path, limit: int) -> None:
    played = play(tmp_path, f"--max_turns={limit}", say=always(CALL))
    assert {record.num_turns for record in played.records} == {limit}
    assert set(played.outcomes) == {"turns_limit"}


def test_max_new_tokens_cuts_a_reply(tmp_path: Path) -> None:
    played = play(tmp_path, "--max_new_tokens=3")
    assert {len(turn.token_ids) for turn in played.turns} == {3}
    assert set(played.outcomes) == {"length_limit"}


def test_max_prompt_tokens_ends_an_episode(tmp_path: Path) -> None:
    assert set(play(tmp_path, "--max_prompt_tokens=5").outcomes) == {"context_limit"}


def test_episode_timeout_ends_an_episode(tmp_path: Path) -> None:
    assert set(play(tmp_path, "--episode_timeout=0.05", seconds=5.0).outcomes) == {"timeout"}


def test_repetition_early_stop_times_ends_an_episode_that_repeats_itself(tmp_path: Path) -> None:
    flags = ("--repetition_early_stop_times=1", "--max_turns=6")
    assert set(play(tmp_path, *flags, say=always(CALL)).outcomes) == {"repetition"}


@pytest.mark.parametrize("limit", [1, 3])
def test_max_silent_turns_ends_an_episode_without_call_and_answer(tmp_path: Path, limit: int) -> None:
    played = play(tmp_path, f"--max_silent_turns={limit}", "--max_turns=9", say=lambda record, turn: f"Hm {turn}")
    assert {record.num_turns for record in played.records} == {limit}
    assert set(played.outcomes) == {"no_answer"}


@pytest.mark.parametrize("limit", [1, 3])
def test_max_attempts_bounds_the_attempts_at_a_broken_slot(tmp_path: Path, limit: int) -> None:
    def breaks(record: str, turn: int) -> str:
        raise RuntimeError("broken")

    played = play(tmp_path, f"--max_attempts={limit}", say=breaks)
    assert len(played.records) == 2 * limit
    assert set(played.outcomes) == {"error"}


def test_group_deadline_abandons_stragglers(tmp_path: Path) -> None:
    async def slowly(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(30)
        return "3"

    def say(record: str, turn: int) -> str:
        return CALL if "/0/" in record[-4:] else ANSWER

    begun = time.monotonic()
    flags = ("--group_deadline=0.1", "--num_generations=3")
    played = play(tmp_path, *flags, say=say, tools={"sum": ScriptedTool(reply=slowly)})
    assert time.monotonic() - begun < 10
    assert [(record.slot, record.reason) for record in played.records if record.status is RecordStatus.ABANDONED] == [
        (0, "group_deadline")
    ]


# --- How it is sampled, shown and scored -------------------------------------------------------------------------


def test_sampling_params_are_those_of_the_split(tmp_path: Path) -> None:
    flags = ('--preferred_sampling_params={"temperature": 0.7}', '--eval_sampling_params={"top_p": 0.5, "top_k": 4}')
    train = play(tmp_path / "train", *flags, train=questions()).engine.asked
    held_out = play(tmp_path / "eval", *flags, held_out=questions()).engine.asked
    assert {(s.temperature, s.top_p, s.top_k) for s in train} == {(0.7, 1.0, 0)}
    assert {(s.temperature, s.top_p, s.top_k) for s in held_out} == {(1.0, 0.5, 4)}


def test_seed_decides_what_is_drawn_and_nothing_else_does(tmp_path: Path) -> None:
    def seeds(folder: str, seed: int) -> set[int]:
        return {sampling.seed for sampling in play(tmp_path / folder, f"--seed={seed}").engine.asked}

    assert seeds("a", 1) == seeds("b", 1)
    assert not seeds("c", 2) & seeds("a2", 1)


def test_default_prompt_asks_for_the_answer_format(tmp_path: Path) -> None:
    (asked, *_) = play(tmp_path / "with").engine.prompts_as_text()
    (plain, *_) = play(tmp_path / "without", "--default_prompt=false").engine.prompts_as_text()
    assert "<answer>" in asked
    assert "<answer>" not in plain


def test_tool_call_parser_decides_what_is_a_call(tmp_path: Path) -> None:
    qwen = play(tmp_path / "qwen", say=always(CALL))
    llama = play(tmp_path / "llama", "--tool_call_parser=llama3", say=always(CALL))
    assert any(turn.tool_results for turn in qwen.turns)
    assert not any(turn.tool_results for turn in llama.turns)
    with pytest.raises(ConfigError, match="tool_call_parser"):
        load_renderer(configured(tmp_path).model.model_name_or_path, tool_call_parser="morse")


SLOW_SCORER = """
import time

def slow(answer, truth):
    time.sleep(20)
    return 1.0
"""


def test_scorer_timeout_leaves_a_slow_answer_unscored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_scorer_of_a_test.py").write_text(SLOW_SCORER)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    begun = time.monotonic()
    played = play(tmp_path, "--scorer_timeout=0.3", train=questions(scorer="slow_scorer_of_a_test:slow"))
    assert time.monotonic() - begun < 15
    assert {record.status for record in played.records} == {RecordStatus.UNSCORED}
    assert all("0.3 s" in record.reason for record in played.records), played.records[0].reason


# --- What a group is worth ---------------------------------------------------------------------------------------


def test_adv_scaling_and_advantage_estimator_reach_the_rows(tmp_path: Path) -> None:
    def advantages(name: str, *flags: str) -> list[float]:
        return [row.turns[0].advantage for row in play(tmp_path / name, *flags).rows]

    assert advantages("plain") == [-1.0, 1.0]
    assert advantages("scaled", "--adv_scaling=3") == [-3.0, 3.0]
    assert advantages("mean", "--advantage_estimator=mean") == [-0.5, 0.5]


def test_drop_zero_advantage_decides_whether_equal_scores_are_trained(tmp_path: Path) -> None:
    assert not play(tmp_path / "dropped", say=always(ANSWER)).rows
    kept = play(tmp_path / "kept", "--drop_zero_advantage=false", say=always(ANSWER)).rows
    assert [row.turns[0].advantage for row in kept] == [0.0, 0.0]


# --- Tools -------------------------------------------------------------------------------------------------------


def test_mcp_server_name_hides_the_tools_of_other_servers(tmp_path: Path) -> None:
    tools = {"sum": SUM, "secret": ScriptedTool(reply="no", server="second")}
    (both, *_) = play(tmp_path / "both", tools=tools).engine.prompts_as_text()
    (one, *_) = play(tmp_path / "one", "--mcp_server_name=first", tools=tools).engine.prompts_as_text()
    assert "secret" in both
    assert "secret" not in one
    assert "sum" in one


def call_real_tool(tmp_path: Path, *flags: str) -> Any:
    """One call of the built-in Python server through the tool set that the flags give."""
    toolset = build_toolset(configured(tmp_path, "--mcp_manager_url=builtin:python", *flags))
    code = "import time\nprint('x' * 5000, flush=True)\ntime.sleep(1.5)"

    async def run() -> Any:
        await toolset.open()
        try:
            session = toolset.session("r")
            (spec,) = session.specs
            (argument,) = spec.parameters["required"]
            return await session.call(
                ToolCall(id="1", name=spec.name, arguments={argument: code}, status=CallStatus.OK)
            )
        finally:
            await toolset.close()

    return asyncio.run(run())


def test_mcp_manager_url_starts_servers_whose_results_tool_result_limit_cuts(tmp_path: Path) -> None:
    result = call_real_tool(tmp_path, "--tool_result_limit=100")
    assert result.truncated
    assert len(result.content) < 300
    assert (tmp_path / "r" / "logs").is_dir()


def test_tool_timeout_ends_a_call(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"within 0\.3 s"):
        call_real_tool(tmp_path, "--tool_timeout=0.3")
