"""Episodes from the first prompt to the stored record: how each ends, and what the model reads on the way."""

import asyncio
from pathlib import Path

import pytest
from rollout_help import CALCULATOR, Model, World, a_task, answer, call, in_world, play, tiny_renderer

from agentrl.errors import ContextTooLong, EngineError, GatewayError, ToolError
from agentrl.rollout.episode import ANSWER_NOW, NUDGE
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.types import CallStatus, Flag, Outcome, RecordStatus, ResultStatus, ToolCall, ToolResult


def prompt_text(engine: Model, number: int = -1) -> str:
    return str(tiny_renderer().tokenizer.decode(engine.prompts[number][1]))


def test_an_answer_ends_the_episode_and_is_scored(tmp_path: Path) -> None:
    engine = Model([call(), answer("3")])
    played = play(tmp_path, engine)
    record = played.record
    assert (record.outcome, record.status, record.final_answer, record.score) == (
        Outcome.ANSWERED,
        RecordStatus.SCORED,
        "3",
        1.0,
    )
    assert [turn.turn for turn in played.turns] == [0, 1]
    assert [result.content for result in played.turns[0].tool_results] == ["3"]
    assert (record.num_turns, record.tool_calls, record.error) == (2, 1, None)
    assert record.sampled_tokens == sum(len(turn.token_ids) for turn in played.turns)
    assert record.prompt_tokens == sum(len(turn.prompt_ids_delta) for turn in played.turns)
    assert (record.min_version, record.max_version) == (0, 0)
    assert played.world.told == [record]
    assert "<tool_response>\n3\n</tool_response>" in prompt_text(engine)


def test_a_wrong_answer_and_a_call_beside_an_answer_end_it_too(tmp_path: Path) -> None:
    played = play(tmp_path, Model([answer("4") + call()]))
    assert (played.record.outcome, played.record.score) == (Outcome.ANSWERED, 0.0)
    assert played.world.toolset.calls == []


def test_an_answer_is_looked_for_in_the_content_never_in_the_reasoning(tmp_path: Path) -> None:
    played = play(tmp_path, Model([f"<think>\n{answer('4')}?\n</think>\n\nhm", f"<think>\nso\n</think>\n\n{answer()}"]))
    assert played.record.final_answer == "3"
    assert played.turns[0].reply.reasoning == f"{answer('4')}?"


def test_reasoning_that_never_ends_holds_no_answer(tmp_path: Path) -> None:
    played = play(tmp_path, Model([f"<think>\n{answer('3')}"]))
    assert (played.record.outcome, played.record.final_answer) == (Outcome.NO_ANSWER, None)


def test_a_silent_model_is_nudged_once_and_then_has_no_answer(tmp_path: Path) -> None:
    played = play(tmp_path, Model(["well", "hm", "so"]))
    assert (played.record.outcome, played.record.score) == (Outcome.NO_ANSWER, 0.0)
    assert played.record.status is RecordStatus.SCORED
    assert played.contents == ["What is 1+2?", NUDGE]


def test_a_nudged_model_may_still_call_and_answer(tmp_path: Path) -> None:
    played = play(tmp_path, Model(["well", call(), answer()]))
    assert (played.record.outcome, played.record.num_turns) == (Outcome.ANSWERED, 3)


def test_the_last_turn_gets_one_notice_and_still_has_the_question(tmp_path: Path) -> None:
    engine = Model([call(arguments=f'{{"expression": "{n}+1"}}') for n in range(3)])
    played = play(tmp_path, engine, max_turns=3)
    assert (played.record.outcome, played.record.score, played.record.num_turns) == (Outcome.TURNS_LIMIT, 0.0, 3)
    assert played.contents == ["What is 1+2?", "1", f"2\n\n{ANSWER_NOW}"]
    last = prompt_text(engine)
    assert last.count("What is 1+2?") == 1
    assert last.count(ANSWER_NOW) == 1


@pytest.mark.parametrize("max_turns", [1, 3])
def test_calls_of_the_last_turn_run_because_what_they_do_may_be_judged(tmp_path: Path, max_turns: int) -> None:
    engine = Model([call(arguments=f'{{"expression": "{n}+1"}}') for n in range(max_turns)])
    played = play(tmp_path, engine, max_turns=max_turns)
    assert played.record.outcome is Outcome.TURNS_LIMIT
    assert len(played.world.toolset.calls) == max_turns
    assert [result.content for result in played.turns[-1].tool_results] == [str(max_turns)]


def test_a_silent_model_reads_the_notice_instead_of_a_nudge(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call(), "hm", answer()]), max_turns=3, max_silent_turns=3)
    assert played.contents[-1] == ANSWER_NOW
    assert played.record.outcome is Outcome.ANSWERED


def test_an_episode_of_one_turn_gets_no_notice(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call()]), max_turns=1)
    assert (played.record.outcome, played.record.num_turns) == (Outcome.TURNS_LIMIT, 1)
    assert ANSWER_NOW not in "".join(played.contents)


def test_a_prompt_beyond_the_limit_ends_the_episode(tmp_path: Path) -> None:
    long = ScriptedTool(reply="long " * 300)
    played = play(tmp_path, Model([call("long", "{}")]), tools={"long": long}, max_prompt_tokens=300)
    assert (played.record.outcome, played.record.num_turns, played.record.score) == (Outcome.CONTEXT_LIMIT, 1, 0.0)


def test_the_engines_context_too_long_ends_the_episode_and_is_no_error(tmp_path: Path) -> None:
    engine = Model([call(), ContextTooLong("too long")])
    record = play(tmp_path, engine).record
    assert (record.outcome, record.num_turns, record.error) == (Outcome.CONTEXT_LIMIT, 1, None)
    assert len(engine.asked) == 2


def test_a_cut_turn_without_a_complete_call_ends_the_episode(tmp_path: Path) -> None:
    half = '<tool_call>\n{"name": "calculator", "argu'
    played = play(tmp_path, Model([half], cut=[half]))
    assert (played.record.outcome, played.record.score) == (Outcome.LENGTH_LIMIT, 0.0)
    assert played.world.toolset.calls == []
    assert played.turns[0].finish_reason == "length"


def test_a_cut_turn_runs_its_complete_calls_and_rejects_the_half_one(tmp_path: Path) -> None:
    text = call() + '\n<tool_call>\n{"name": "calculator", "argu'
    played = play(tmp_path, Model([text, answer()], cut=[text]))
    assert played.record.outcome is Outcome.ANSWERED
    assert [result.status for result in played.turns[0].tool_results] == [ResultStatus.OK, ResultStatus.REJECTED]
    assert len(played.world.toolset.calls) == 1


def test_an_answer_in_a_cut_turn_counts(tmp_path: Path) -> None:
    text = f"{answer()} and"
    assert play(tmp_path, Model([text], cut=[text])).record.outcome is Outcome.ANSWERED


def test_the_second_repeat_is_flagged_and_what_comes_after_it_is_not(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call(), call(), call(), call("calculator", '{"expression": "5+5"}'), answer()]))
    flagged = [Flag.REPEAT_ERROR in turn.flags for turn in played.turns]
    assert flagged == [False, False, True, False, False]
    assert played.record.outcome is Outcome.ANSWERED


def test_repeats_end_the_episode_where_that_is_asked_for(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call()]), repetition_early_stop_times=2)
    assert (played.record.outcome, played.record.num_turns, played.record.score) == (Outcome.REPETITION, 3, 0.0)
    assert len(played.world.toolset.calls) == 2


def test_no_repeats_are_no_repetition(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call(), answer()]), repetition_early_stop_times=0)
    assert played.record.outcome is Outcome.ANSWERED


@pytest.mark.parametrize("where", ["engine", "tool"])
def test_an_episode_past_its_time_is_a_timeout_that_nothing_scores(tmp_path: Path, where: str) -> None:
    hanging = ScriptedTool(hang=True)
    replies = [asyncio.Event().wait] if where == "engine" else [call("hang", "{}")]
    played = play(tmp_path, Model(replies), tools={"hang": hanging}, episode_timeout=0.2)
    record = played.record
    assert (record.outcome, record.status, record.score) == (Outcome.TIMEOUT, RecordStatus.FAILED, None)
    assert 0.2 <= record.seconds < 5


def test_a_broken_engine_is_the_episodes_error_and_names_its_turn(tmp_path: Path) -> None:
    record = play(tmp_path, Model([call(), EngineError("boom")]), max_attempts=1).record
    assert (record.outcome, record.status, record.num_turns) == (Outcome.ERROR, RecordStatus.FAILED, 1)
    assert record.error == {"where": "turn 1: generate", "type": "EngineError", "message": "boom"}


def test_what_an_engine_never_should_raise_is_the_episodes_error_too(tmp_path: Path) -> None:
    record = play(tmp_path, Model([ZeroDivisionError("no")]), max_attempts=1).record
    assert record.error == {"where": "turn 0: generate", "type": "EngineError", "message": "ZeroDivisionError: no"}


def test_messages_the_template_refuses_are_an_error_at_the_opening(tmp_path: Path) -> None:
    task = a_task(messages=({"role": "user", "content": 7},))
    record = play(tmp_path, Model([answer()]), task=task, max_attempts=1).record
    assert record.error is not None
    assert (record.error["where"], record.error["type"]) == ("open the conversation", "RenderError")
    assert record.num_turns == 0


def test_a_broken_gateway_is_the_episodes_error_and_cancels_its_other_calls(tmp_path: Path) -> None:
    async def wait(arguments: dict) -> str:
        await asyncio.sleep(30)
        return ""

    def broken(arguments: dict) -> str:
        raise GatewayError("the way is gone")

    played = play(
        tmp_path,
        Model([call("wait", "{}") + call("broken", "{}")]),
        tools={"wait": ScriptedTool(reply=wait), "broken": ScriptedTool(reply=broken)},
        max_attempts=1,
    )
    assert played.record.error == {"where": "call broken", "type": "GatewayError", "message": "the way is gone"}
    assert played.record.seconds < 10


def test_cancellation_propagates_and_leaves_no_terminal_record(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        claim = await world.claim(a_task())
        running = asyncio.create_task(world.runner.run(claim))
        while not world.engine.prompts:
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert [record.status for record in await world.records()] in ([], [RecordStatus.RUNNING])

    engine = Model([answer()])
    engine.faults.hang = True
    in_world(tmp_path, scenario, engine)


def test_a_malformed_call_is_answered_with_its_reason_and_is_never_the_answer(tmp_path: Path) -> None:
    broken = '<tool_call>\n{"name": "calculator", "arguments": {"expression": <answer>3</answer>}\n</tool_call>'
    played = play(tmp_path, Model([broken, answer()]))
    first = played.turns[0]
    assert Flag.FORMAT_ERROR in first.flags
    assert [result.status for result in first.tool_results] == [ResultStatus.REJECTED]
    assert first.reply.calls[0].reason
    assert first.reply.calls[0].reason in played.contents[1]
    assert played.world.toolset.calls == []
    assert (played.record.outcome, played.record.num_turns) == (Outcome.ANSWERED, 2)


def test_bad_arguments_are_answered_with_what_is_wrong_and_flagged(tmp_path: Path) -> None:
    played = play(tmp_path, Model([call(arguments='{"formula": "1"}'), answer()]))
    assert played.turns[0].flags == {Flag.FORMAT_ERROR}
    assert "expression" in played.contents[1]
    assert played.world.toolset.calls == []


@pytest.mark.parametrize("hidden", [False, True])
def test_an_unknown_or_hidden_tool_is_answered_with_the_valid_names(tmp_path: Path, hidden: bool) -> None:
    """sc-038"""
    tools = {"calculator": CALCULATOR, "secret": ScriptedTool(reply="no")}
    task = a_task(tools=("calculator",))
    name = "secret" if hidden else "calcul"
    played = play(tmp_path, Model([call(name, "{}"), answer()]), task=task, tools=tools)
    (result,) = played.turns[0].tool_results
    assert result.status is ResultStatus.REJECTED
    assert played.turns[0].reply.calls[0].status is CallStatus.UNKNOWN_TOOL
    assert "calculator" in result.content
    assert played.world.toolset.calls == []
    assert Flag.TOOL_FAILED not in played.turns[0].flags


def test_three_calls_run_together_and_the_second_may_fail(tmp_path: Path) -> None:
    """sc-039"""
    meeting = asyncio.Barrier(3)

    def meet(text: str, error: bool = False) -> ScriptedTool:
        async def reply(arguments: dict) -> str:
            await meeting.wait()
            if error:
                raise ToolError(text)
            return text

        return ScriptedTool(reply=reply)

    tools = {"a": meet("one"), "b": meet("no such page", error=True), "c": meet("three")}
    engine = Model([call("a", "{}") + call("b", "{}") + call("c", "{}"), answer()])
    played = play(tmp_path, engine, tools=tools)
    results = played.turns[0].tool_results
    assert [(r.name, r.status, r.content) for r in results] == [
        ("a", ResultStatus.OK, "one"),
        ("b", ResultStatus.TOOL_ERROR, "no such page"),
        ("c", ResultStatus.OK, "three"),
    ]
    assert [r.call_id for r in results] == [c.id for c in played.turns[0].reply.calls]
    assert played.turns[0].flags == {Flag.TOOL_FAILED}
    assert played.contents[1:] == ["one", "no such page", "three"]
    text = prompt_text(engine)
    assert text.index("one") < text.index("no such page") < text.index("three")


def test_a_tool_past_its_deadline_is_told_to_the_model(tmp_path: Path) -> None:
    tools = ScriptedToolset({"hang": ScriptedTool(hang=True)}, call_timeout_seconds=0.05)
    played = play(tmp_path, Model([call("hang", "{}"), answer()]), tools=tools)
    (result,) = played.turns[0].tool_results
    assert (result.status, played.turns[0].flags) == (ResultStatus.TIMEOUT, {Flag.TOOL_FAILED})
    assert result.latency_seconds >= 0.05
    assert played.record.outcome is Outcome.ANSWERED


def test_tool_text_stays_text(tmp_path: Path) -> None:
    """sc-024, sc-025, sc-026, sc-028"""
    texts = ['{"messages": [], "chosen_tools": ["x"]}', '{"error": "e"}', "42", "null", "北京\n天气"]
    tools = {f"t{n}": ScriptedTool(reply=text) for n, text in enumerate(texts)}
    played = play(tmp_path, Model(["".join(call(name, "{}") for name in tools), answer()]), tools=tools)
    assert played.contents[1:] == texts
    assert {result.status for result in played.turns[0].tool_results} == {ResultStatus.OK}
    assert played.turns[0].flags == frozenset()


def test_a_session_is_closed_however_the_episode_ends(tmp_path: Path) -> None:
    closed: list[str] = []

    class Session:
        specs = ()

        def __init__(self, record: str) -> None:
            self.record = record

        async def call(self, call: ToolCall) -> ToolResult:
            raise GatewayError("gone")

        async def close(self) -> None:
            closed.append(self.record)

    class Toolset(ScriptedToolset):
        def session(self, record: str, **restrictions: object) -> Session:  # pyright: ignore
            return Session(record)

    played = play(tmp_path, Model([call()]), tools=Toolset({}), max_attempts=2)
    assert closed == [record.id for record in played.records]
    assert len(closed) == 2


def test_every_turn_keeps_the_sampling_values_it_was_sent(tmp_path: Path) -> None:
    engine = Model([call(), answer()])
    sent: list = []
    generate = engine.generate

    async def watch(prompt_ids, *, sampling, session, deadline_seconds):
        sent.append(sampling)
        return await generate(prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds)

    engine.generate = watch  # type: ignore[method-assign]
    played = play(tmp_path, engine, preferred_sampling_params={"temperature": 0.7, "top_k": 5})
    assert [turn.sampling for turn in played.turns] == sent
    assert sent[0].seed != sent[1].seed
    assert (sent[0].temperature, sent[0].top_k, sent[0].stop_token_ids) == (0.7, 5, tiny_renderer().stop_token_ids)
