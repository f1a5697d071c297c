"""The dock with real server processes: names, outcomes, servers that are broken, and what it tells about itself."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentdock.calls import CallTimeout, InvalidArguments, ServerDied, UnknownProfile, UnknownTool
from agentdock.config import DockConfig, GatewayOptions, Profile, load_config
from agentdock.dock import Dock
from agentdock.spec import ServerSpec, Serving
from agentdock.supervisor import ServerState

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"


def odd(name: str, *args: str, aliases: tuple[str, ...] = ()) -> ServerSpec:
    return ServerSpec(name=name, command=sys.executable, args=("-S", str(ODD), *args), serving=Serving(aliases=aliases))


def play(config: DockConfig, state_dir: Path, scene: Callable[[Dock], Awaitable[None]]) -> None:
    async def main() -> None:
        dock = Dock(config, state_dir=state_dir)
        try:
            await dock.start()
            await scene(dock)
        finally:
            await dock.close()

    asyncio.run(main())


def pid_of(dock: Dock, server: str) -> int:
    (pid,) = (status.pid for status in dock.servers() if status.name == server)
    assert pid is not None
    return pid


def test_a_tool_is_called_by_id_by_server_alias_by_alias_and_by_bare_name(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        assert [tool.id for tool in dock.tools()] == ["a.echo", "a.fail", "b.fail", "b.slow", "c.d.fail"]
        for name in ("a.echo", "web.echo", "say", "echo"):
            assert (await dock.call(name, {"text": name})).text == name
        assert dock.find("web.slow").id == "b.slow"
        assert dock.find("c.d.fail").server == "c.d"
        with pytest.raises(UnknownTool, match=r"'fail' is ambiguous; say which: a\.fail, b\.fail, c\.d\.fail"):
            dock.find("fail")
        with pytest.raises(UnknownTool, match=r"no tool 'a\.ecko'; near names are a\.echo"):
            dock.find("a.ecko")
        with pytest.raises(UnknownTool, match=r"no tool 'x\.slow'; near names are .*b\.slow"):
            dock.find("x.slow")

    servers = (
        odd("a", "--tools", "echo,fail", aliases=("web",)),
        odd("b", "--tools", "fail,slow", aliases=("web",)),
        odd("c.d", "--tools", "fail"),
    )
    play(DockConfig(servers=servers, aliases={"say": "a.echo"}), tmp_path, scene)


def test_a_profile_offers_its_selection_and_nothing_else(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        assert [tool.id for tool in dock.tools(profile="small")] == ["a.echo"]
        assert [status.name for status in dock.servers(profile="small")] == ["a"]
        assert (await dock.call("echo", {"text": "x"}, profile="small")).text == "x"
        with pytest.raises(UnknownTool):
            await dock.call("b.echo", {}, profile="small")
        with pytest.raises(UnknownProfile, match="no profile 'large'; there are default, small"):
            dock.tools(profile="large")

    profiles = {
        "default": Profile(name="default"),
        "small": Profile(name="small", servers=("a",), tools=("*.echo",)),
    }
    play(DockConfig(servers=(odd("a"), odd("b")), profiles=profiles), tmp_path, scene)


def test_one_broken_server_is_named_and_the_others_are_used(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        assert (await dock.call("good.echo", {"text": "x"})).text == "x"
        states = {status.name: status for status in dock.servers()}
        assert states["good"].state is ServerState.READY
        assert states["bad"].state is ServerState.FAILED
        assert "no-such-command" in states["bad"].reason
        assert states["keyless"].missing == ("DOCK_TEST_KEY",)
        assert [reason.partition(":")[0] for reason in dock.unready()] == ["bad", "keyless"]
        with pytest.raises(UnknownTool, match="tools of bad, keyless may be missing"):
            dock.find("bad.search")

    keyless = replace(odd("keyless"), env={"KEY": "${DOCK_TEST_KEY}"})
    play(DockConfig(servers=(ServerSpec(name="bad", command="no-such-command"), odd("good"), keyless)), tmp_path, scene)


def test_a_server_that_hangs_at_its_start_does_not_hold_the_others_up(tmp_path: Path) -> None:
    async def main() -> None:
        dock = Dock(DockConfig(servers=(odd("mute", "--silent"), odd("good"))), state_dir=tmp_path)
        await dock.start(settle_seconds=0.5)
        assert (await dock.call("good.echo", {"text": "x"})).text == "x"
        assert dock.unready() == ("mute: starting",)
        began = time.monotonic()
        await dock.close()
        assert time.monotonic() - began < 5

    asyncio.run(main())


def test_arguments_are_fitted_to_the_schema_or_refused_before_they_are_sent(tmp_path: Path) -> None:
    calls = tmp_path / "calls.log"

    async def scene(dock: Dock) -> None:
        outcome = await dock.call("a.list", {"items": '[1, "2"]'})
        assert (json.loads(outcome.text), len(outcome.notes)) == ({"items": [1, 2]}, 2)
        with pytest.raises(InvalidArguments, match=r"'a\.list' do not fit: items\[0\]: \"x\" is not integer"):
            await dock.call("a.list", {"items": "x"})
        assert calls.read_text().splitlines() == ["call list"]
        assert samples(dock, "agentdock_calls_total")[("a.list", "invalid_arguments")] == 1
        assert json.loads((await dock.call("raw.list", {"items": "x"})).text) == {"items": "x"}
        with pytest.raises(InvalidArguments):
            await dock.call("strict.list", {"items": "[1]"})

    tools = ("--tools", "list")
    servers = (
        odd("a", *tools, "--calls", str(calls)),
        replace(odd("raw", *tools), serving=Serving(arguments="pass")),
        replace(odd("strict", *tools), serving=Serving(arguments="check")),
    )
    play(DockConfig(servers=servers), tmp_path, scene)


def test_a_tools_own_failure_is_an_outcome_and_all_outcomes_are_counted(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        outcome = await dock.call("a.fail", {"text": "this"})
        assert (outcome.is_error, outcome.text) == (True, "failed on this")
        assert outcome.content == ({"type": "text", "text": "failed on this"},)
        await dock.call("a.echo", {})
        with pytest.raises(CallTimeout):
            await dock.call("a.hang", {}, timeout_seconds=0.2)
        pending = asyncio.create_task(dock.call("a.hang", {}))
        await asyncio.sleep(0.1)
        assert samples(dock, "agentdock_calls_in_flight")[("a.hang",)] == 1
        pending.cancel()
        await asyncio.wait([pending])
        assert samples(dock, "agentdock_calls_total") == {
            ("a.fail", "tool_error"): 1,
            ("a.echo", "ok"): 1,
            ("a.hang", "timeout"): 1,
            ("a.hang", "cancelled"): 1,
        }
        assert samples(dock, "agentdock_calls_in_flight")[("a.hang",)] == 0
        assert samples(dock, "agentdock_call_seconds")[("a.echo", "+Inf")] == 1

    play(DockConfig(servers=(odd("a"),)), tmp_path, scene)


def samples(dock: Dock, name: str) -> dict[tuple[str, ...], float]:
    (metric,) = (metric for metric in dock.metrics() if metric.name == name)
    return {tuple(sample.labels.values()): sample.value for sample in metric.samples}


def test_a_call_is_never_allowed_more_than_the_configured_maximum(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        for wanted in (None, 100.0):
            with pytest.raises(CallTimeout, match=r"within 0\.2 s"):
                await dock.call("a.hang", {}, timeout_seconds=wanted)

    options = GatewayOptions(call_timeout_seconds=0.2, max_call_timeout_seconds=0.2)
    play(DockConfig(servers=(odd("a"),), gateway=options), tmp_path, scene)


def test_a_call_whose_server_is_killed_errors_once_and_the_next_one_succeeds(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        pending = asyncio.create_task(dock.call("a.hang", {}))
        await asyncio.sleep(0.1)
        os.kill(pid_of(dock, "a"), signal.SIGKILL)
        with pytest.raises(ServerDied, match="tool server 'a' was killed by signal 9 during a call to 'hang'"):
            await pending
        assert (await dock.call("a.echo", {"text": "back"})).text == "back"
        assert samples(dock, "agentdock_server_restarts_total") == {("a",): 1}

    play(DockConfig(servers=(odd("a"),)), tmp_path, scene)


def test_a_reload_touches_only_what_changed_and_tells_listeners(tmp_path: Path) -> None:
    file = tmp_path / "dock.toml"

    def write(*entries: tuple[str, str]) -> None:
        tables = (
            f'[server.{name}]\ncommand = "{sys.executable}"\nargs = ["-S", "{ODD}"{more}]' for name, more in entries
        )
        file.write_text("\n".join(tables))

    async def scene(dock: Dock) -> None:
        told: list[int] = []
        end = dock.on_tools_changed(lambda: told.append(len(dock.tools())))
        kept, removed = pid_of(dock, "kept"), pid_of(dock, "gone")
        write(("kept", ""), ("edited", ', "--tools", "echo"'), ("new", ""))
        outcome = await dock.reload()
        assert (outcome.added, outcome.removed, outcome.changed) == (("new",), ("gone",), ("edited",))
        assert pid_of(dock, "kept") == kept
        assert (await dock.call("new.echo", {"text": "x"})).text == "x"
        assert [tool.id for tool in dock.tools() if tool.server == "edited"] == ["edited.echo"]
        assert not Path(f"/proc/{removed}").exists()
        assert told[-1] == len(dock.tools())
        end()

        file.write_text(file.read_text() + "\nport = [")
        outcome = await dock.reload()
        assert "dock.toml:" in outcome.problem
        assert "not valid TOML" in outcome.problem
        assert (await dock.call("kept.echo", {"text": "still"})).text == "still"

    write(("kept", ""), ("edited", ""), ("gone", ""))
    play(load_config(file), tmp_path, scene)


def test_a_removed_server_finishes_the_calls_that_are_under_way(tmp_path: Path) -> None:
    file = tmp_path / "dock.toml"
    entry = f'[server.NAME]\ncommand = "{sys.executable}"\nargs = ["-S", "{ODD}"]\n'
    file.write_text(entry.replace("NAME", "kept") + entry.replace("NAME", "gone"))

    async def scene(dock: Dock) -> None:
        removed = pid_of(dock, "gone")
        pending = asyncio.create_task(dock.call("gone.slow", {"text": "whole"}))
        while samples(dock, "agentdock_calls_in_flight").get(("gone.slow",)) != 1:
            await asyncio.sleep(0.01)
        file.write_text(entry.replace("NAME", "kept"))
        reloading = asyncio.create_task(dock.reload())
        await asyncio.sleep(0.1)
        with pytest.raises(UnknownTool):
            await dock.call("gone.echo", {})
        assert (await pending).text == "whole"
        assert (await reloading).removed == ("gone",)
        assert not Path(f"/proc/{removed}").exists()

    play(load_config(file), tmp_path, scene)
