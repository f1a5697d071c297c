"""What every toolset does, played on the scripted one and on real MCP processes of both protocol generations."""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from agentdock.supervisor import ServerSpec
from agentrl.errors import ConfigError, ToolError
from agentrl.tools import McpToolset, ScriptedTool, ScriptedToolset, Toolset
from agentrl.types import ResultStatus, ToolCall, ToolResult

SERVERS = Path(__file__).resolve().parent.parent / "tools_servers"
LIMITS = {"call_timeout_seconds": 1.5, "result_limit_chars": 1000}


def fail(arguments: dict) -> str:
    raise ToolError(f"failed on {arguments.get('text', '')}")


def scripted() -> Toolset:
    def tool(**options) -> ScriptedTool:
        return ScriptedTool(server="t", **options)

    def echo(arguments: dict) -> str:
        return arguments.get("text", "")

    table = {
        "echo": tool(reply=echo),
        "fail": tool(reply=fail),
        "hang": tool(hang=True),
        "slow": tool(reply=echo, latency_seconds=0.6),
        "big": tool(reply="é" * 5_000_000),
    }
    return ScriptedToolset(table, **LIMITS)


def of_server(script: str, *args: str) -> Toolset:
    spec = ServerSpec(name="t", command=sys.executable, args=(str(SERVERS / script), *args))
    return McpToolset([spec], **LIMITS)


MAKE: dict[str, Callable[[], Toolset]] = {
    "scripted": scripted,
    "protocol_2025": lambda: of_server("odd.py", "--tools", "echo,fail,hang,slow,big"),
    "sdk": lambda: of_server("sdk.py"),
}


@pytest.fixture(scope="module", params=MAKE)
def play(request: pytest.FixtureRequest) -> Iterator[Callable[[Callable[[Toolset], Awaitable[None]]], None]]:
    """One toolset for all scenes, so that each also shows that the ones before it broke nothing."""
    toolset = MAKE[request.param]()
    with asyncio.Runner() as runner:
        runner.run(toolset.open())
        yield lambda scene: runner.run(as_coroutine(scene(toolset)))
        runner.run(toolset.close())


async def as_coroutine(scene: Awaitable[None]) -> None:
    await scene


def call(name: str, id: str = "c1", **arguments: object) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments)


async def outcome(toolset: Toolset, wanted: ToolCall) -> ToolResult | ToolError:
    try:
        return await toolset.session("r").call(wanted)
    except ToolError as error:
        return error


def test_specs_are_what_the_tools_declare(play) -> None:
    async def scene(toolset: Toolset) -> None:
        assert sorted(spec.name for spec in toolset.specs) == ["big", "echo", "fail", "hang", "slow"]
        assert {spec.server for spec in toolset.specs} == {"t"}
        assert all(spec.parameters["type"] == "object" for spec in toolset.specs)
        assert toolset.session("r").specs == toolset.specs

    play(scene)


def test_results_are_text_and_stay_what_they_are(play) -> None:
    texts = [
        "42",
        "true",
        "null",
        "[1, 2]",
        "",
        '两行\n文字 "引号" é',
        '{"messages": [], "chosen_tools": ["x"], "chosen_servers": []}',
        "<|im_end|>\n</tool_response>\n=======",
        '{"error": "no"}',
        "{}",
    ]

    async def scene(toolset: Toolset) -> None:
        session = toolset.session("r")
        specs = session.specs
        for text in texts:
            result = await session.call(call("echo", id="c9", text=text))
            assert (result.content, result.status, result.call_id) == (text, ResultStatus.OK, "c9")
            assert not result.truncated
        assert session.specs == specs == toolset.specs

    play(scene)


def test_errors_the_model_can_repair_are_tool_errors(play) -> None:
    async def scene(toolset: Toolset) -> None:
        failed = await outcome(toolset, call("fail", text="三"))
        assert isinstance(failed, ToolError)
        assert "failed on 三" in str(failed)
        unknown = await outcome(toolset, call("serch", text="x"))
        assert isinstance(unknown, ToolError)
        assert unknown.status == ResultStatus.REJECTED
        assert all(name in str(unknown) for name in ("'serch'", "echo", "big"))

    play(scene)


def test_what_is_not_shown_cannot_be_called(play) -> None:
    async def scene(toolset: Toolset) -> None:
        session = toolset.session("r", allow=["echo"], servers=["t"])
        assert [spec.name for spec in session.specs] == ["echo"]
        with pytest.raises(ToolError, match=r"There is no tool 'fail'\. Available tools: echo"):
            await session.call(call("fail"))
        assert (await session.call(call("echo", text="a"))).content == "a"
        assert toolset.session("r", allow=[]).specs == ()
        with pytest.raises(ConfigError, match=r"'serch'.*'echo'"):
            toolset.session("r", allow=["echo", "serch"])
        with pytest.raises(ConfigError, match="no tool server 'u'; there are 't'"):
            toolset.session("r", servers=["u"])

    play(scene)


def test_a_call_past_its_deadline_names_server_tool_and_limit_and_frees_the_way(play) -> None:
    async def scene(toolset: Toolset) -> None:
        began = time.monotonic()
        late, quick = await asyncio.gather(outcome(toolset, call("hang")), outcome(toolset, call("echo", text="q")))
        assert time.monotonic() - began < 3
        assert isinstance(late, ToolError)
        assert late.status == ResultStatus.TIMEOUT
        assert all(part in str(late) for part in ("'hang'", "'t'", "1.5 s"))
        assert isinstance(quick, ToolResult)
        assert isinstance(await outcome(toolset, call("echo", text="after")), ToolResult)

    play(scene)


def test_a_large_result_is_cut_with_a_mark_and_the_original_size(play) -> None:
    async def scene(toolset: Toolset) -> None:
        result = await toolset.session("r").call(call("big"))
        assert result.truncated
        assert result.content.startswith("é" * 1000 + "\n[truncated")
        assert "5000000 characters" in result.content
        assert len(result.content) < 1100

    play(scene)


def test_calls_of_one_turn_run_together_and_fail_alone(play) -> None:
    async def scene(toolset: Toolset) -> None:
        calls = [call("slow", id="a", text="1"), call("fail", id="b", text="2"), call("slow", id="c", text="3")]
        began = time.monotonic()
        first, second, third = await asyncio.gather(*(outcome(toolset, each) for each in calls))
        assert time.monotonic() - began < 1.15
        assert isinstance(first, ToolResult)
        assert isinstance(second, ToolError)
        assert isinstance(third, ToolResult)
        assert (first.content, third.content) == ("1", "3")

    play(scene)


def test_a_cancelled_call_leaves_the_tools_usable(play) -> None:
    async def scene(toolset: Toolset) -> None:
        task = asyncio.create_task(toolset.session("r").call(call("hang")))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert isinstance(await outcome(toolset, call("echo", text="x")), ToolResult)

    play(scene)
