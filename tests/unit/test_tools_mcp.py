"""``McpToolset``: names, restarts, failure and what it tells the model and the run."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from agentdock.supervisor import RestartPolicy, ServerSpec, builtin_server
from agentrl.errors import ConfigError, GatewayError, ToolError
from agentrl.tools import McpToolset
from agentrl.types import ResultStatus, ToolCall

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
FAST = RestartPolicy(first_backoff_seconds=0.02)


def odd(name: str, *args: str) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=(str(ODD), *args))


def play(toolset: McpToolset, scene: Callable[[McpToolset], Awaitable[None]]) -> None:
    async def main() -> None:
        await toolset.open()
        try:
            await scene(toolset)
        finally:
            await toolset.close()

    asyncio.run(main())


def call(name: str, **arguments: object) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments)


def test_tools_of_one_name_are_both_reachable_under_distinct_names() -> None:
    async def scene(toolset: McpToolset) -> None:
        assert [(s.name, s.server) for s in toolset.specs] == [("a_env", "a"), ("echo", "a"), ("b_env", "b")]
        session = toolset.session("r")
        assert '"WHO": "a"' in (await session.call(call("a_env"))).content
        assert '"WHO": "b"' in (await session.call(call("b_env"))).content
        assert [s.name for s in toolset.session("r", servers=["b"]).specs] == ["b_env"]
        assert [s.name for s in toolset.session("r", allow=["env"]).specs] == ["a_env", "b_env"]
        assert [s.name for s in toolset.session("r", allow=["b.env"]).specs] == ["b_env"]
        with pytest.raises(ToolError, match="Available tools: b_env"):
            await toolset.session("r", servers=["b"]).call(call("a_env"))

    tools = {"a": "env,echo", "b": "env"}
    specs = [
        ServerSpec(name=n, command=sys.executable, args=(str(ODD), "--tools", t), env={"WHO": n})
        for n, t in tools.items()
    ]
    play(McpToolset(specs), scene)


def test_long_and_odd_names_are_shown_valid_and_dispatched_as_they_are(tmp_path: Path) -> None:
    names = ["x" * 100, "查询", "a.b/c"]
    calls = tmp_path / "calls"

    async def scene(toolset: McpToolset) -> None:
        shown = [spec.name for spec in toolset.specs]
        assert len(set(shown)) == 3
        assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isascii() for name in shown)
        for name in shown:
            assert (await toolset.session("r").call(call(name, text="t"))).content == "t"
        assert calls.read_text().splitlines() == [f"call {name}" for name in names]

    play(McpToolset([odd("a", "--tools", ",".join(names), "--calls", str(calls))]), scene)


def test_a_call_lost_with_its_server_is_not_repeated_and_its_outcome_is_unknown(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    async def scene(toolset: McpToolset) -> None:
        with pytest.raises(ToolError, match=r"'a' exited with code 7.*Unknown outcome") as lost:
            await toolset.session("r").call(call("die_once"))
        assert lost.value.status == ResultStatus.UNKNOWN_OUTCOME
        assert calls.read_text().count("call die_once") == 1
        assert (await toolset.session("r").call(call("die_once", text="now"))).content == "now"

    play(McpToolset([odd("a", "--tools", "die_once", "--calls", str(calls))], policy=FAST), scene)


def test_an_idempotent_call_lost_with_its_server_is_made_once_more(tmp_path: Path) -> None:
    calls = tmp_path / "calls"

    async def scene(toolset: McpToolset) -> None:
        assert toolset.specs[0].idempotent
        assert (await toolset.session("r").call(call("die_once", text="x"))).content == "x"
        with pytest.raises(ToolError, match="Unknown outcome"):
            await toolset.session("r").call(call("die"))
        assert calls.read_text().splitlines().count("call die") == 2

    options = ["--tools", "die_once,die", "--idempotent", "die_once,die", "--calls", str(calls)]
    play(McpToolset([odd("a", *options)], policy=FAST), scene)


def test_a_server_that_failed_for_good_is_a_gateway_error_and_an_event(tmp_path: Path) -> None:
    async def scene(toolset: McpToolset) -> None:
        session = toolset.session("r")
        assert not toolset.failed.is_set()
        with pytest.raises(ToolError):
            await session.call(call("die"))
        await asyncio.wait_for(toolset.failed.wait(), 5)
        assert "'a' failed 3 restarts" in toolset.failure
        with pytest.raises(GatewayError, match="3 restarts") as broken:
            await session.call(call("echo"))
        assert broken.value.where == "call echo"

    broken = odd("a", "--starts", str(tmp_path / "starts"), "--die-from-start", "2")
    play(McpToolset([broken], policy=FAST), scene)


def test_a_needed_server_that_cannot_start_stops_the_run_before_the_first_question() -> None:
    specs = [odd("a"), odd("b", "--die-at-start", "no licence")]
    with pytest.raises(ConfigError, match=r"mcp_manager_url: tool server 'b' exited with code 1[\s\S]*no licence"):
        asyncio.run(McpToolset(specs).open())


def test_servers_that_are_not_needed_may_be_missing_and_are_named() -> None:
    async def scene(toolset: McpToolset) -> None:
        assert (await toolset.session("r").call(call("echo", text="x"))).content == "x"
        assert [(status.name, status.state.value) for status in toolset.status] == [("a", "ready"), ("b", "failed")]
        assert "no licence" in toolset.status[1].reason
        with pytest.raises(ConfigError, match="no tool server 'b'; there are 'a'"):
            toolset.session("r", servers=["b"])

    play(McpToolset([odd("a"), odd("b", "--die-at-start", "no licence")], required=["a"]), scene)


def test_a_required_server_must_be_among_the_sources() -> None:
    with pytest.raises(ConfigError, match="no tool server 'z'; there are 'a'"):
        McpToolset([odd("a")], required=["z"])


def test_built_in_servers_work_together_and_show_the_model_usable_errors() -> None:
    async def scene(toolset: McpToolset) -> None:
        assert {s.name: s.idempotent for s in toolset.specs} == {
            "calculator": True,
            "execute_code": False,
            "lookup": True,
        }
        session = toolset.session("r")
        assert (await session.call(call("calculator", expression="2*3*5*7*11"))).content == "2310"
        assert (await session.call(call("execute_code", code="print(6*7)"))).content == "42"
        assert "Phobos" in (await session.call(call("lookup", query="moons of Mars"))).content
        for arguments, problem in [
            ({}, "argument 'expression' is missing; expected expression (string)"),
            ({"expression": 7}, "argument 'expression' must be of type string, not int"),
            ({"expression": "1", "x": 1}, "there is no argument 'x'; expected expression (string)"),
            ({"expression": "1/0"}, "division by zero"),
        ]:
            with pytest.raises(ToolError) as error:
                await session.call(call("calculator", **arguments))
            assert str(error.value) == problem
        with pytest.raises(ToolError, match="ZeroDivisionError") as crashed:
            await session.call(call("execute_code", code="print('before')\n1/0"))
        assert str(crashed.value).startswith("before\n[stderr]\nTraceback")
        assert str(crashed.value).endswith("[exit code 1]")

    play(McpToolset([builtin_server(name) for name in ("calculator", "python", "lookup")]), scene)
