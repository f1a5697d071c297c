"""Logs of servers and calls: what is kept of them, how much, and that no secret is in them."""

import asyncio
import json
import stat
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from agentdock.calllog import shape
from agentdock.calls import CallOutcome, CallTimeout, InvalidArguments
from agentdock.config import DockConfig, LogOptions, parse_config
from agentdock.dock import Dock
from agentdock.logs import ErrorStream, RotatingFile, Rotation, tail_of
from agentdock.redaction import Redactor, secrets_of, without_secrets
from agentdock.spec import Remote, ServerSpec, Serving

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
SECRET = "dock-test-secret-73"


def odd(*args: str, **env: str) -> ServerSpec:
    return ServerSpec(name="a", command=sys.executable, args=("-S", str(ODD), *args), env=env)


def play(config: DockConfig, state_dir: Path, scene: Callable[[Dock], Awaitable[None]]) -> None:
    async def main() -> None:
        dock = Dock(config, state_dir=state_dir)
        try:
            await dock.start()
            await scene(dock)
        finally:
            await dock.close()

    asyncio.run(main())


def lines_of(state_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (state_dir / "calls.jsonl").read_text().splitlines()]


def test_no_secret_of_a_server_is_in_its_log_its_status_an_error_or_the_call_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCK_TEST_KEY", SECRET)

    async def scene(dock: Dock) -> None:
        assert "my key is [redacted DOCK_TEST_KEY] and more" in dock.logs("a")
        failed = await dock.call("a.fail", {"text": f"with {SECRET}"})
        assert failed.text == "failed on with [redacted DOCK_TEST_KEY]"
        assert failed.content[0]["text"] == failed.text
        assert (await dock.call("a.echo", {"text": SECRET})).text == SECRET
        assert SECRET not in str(dock.servers())

    async def broken(dock: Dock) -> None:
        (status,) = dock.servers()
        assert "my key is [redacted DOCK_TEST_KEY] and more" in status.reason
        assert SECRET not in " ".join(dock.unready())

    spec = odd("--say-env", "KEY", KEY="${DOCK_TEST_KEY}")
    play(DockConfig(servers=(spec,), logs=LogOptions(calls="full")), tmp_path, scene)
    play(DockConfig(servers=(replace(spec, args=(*spec.args, "--die-at-start", "x")),)), tmp_path, broken)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"a.log", "calls.jsonl"} <= {path.name for path in files}
    assert not any(SECRET in path.read_text() for path in files)


def test_what_counts_as_a_secret() -> None:
    env = {"A": "${ONE}", "API_KEY": "literal-key", "MODE": "plain", "B": "${UNSET:-default}", "H": "${HOME}"}
    remote = Remote(url="https://x/${TWO}", headers={"Authorization": "Bearer abcdef", "X-Plain": "header"})
    specs = [ServerSpec(name="a", command="x", env=env), ServerSpec(name="b", remote=remote)]
    found = secrets_of(specs, {"ONE": "value-one", "TWO": "value-two", "HOME": "/root"})
    assert found == {
        "value-one": "ONE",
        "value-two": "TWO",
        "literal-key": "API_KEY",
        "Bearer abcdef": "Authorization",
        "abcdef": "Authorization",
        "header": "X-Plain",
    }
    redact = Redactor(found)
    assert redact("sent abcdef to /root in plain") == "sent [redacted Authorization] to /root in plain"


@pytest.mark.parametrize("before", ["", "x" * 70_000], ids=["short_line", "endless_line"])
def test_a_secret_that_comes_in_parts_is_redacted(tmp_path: Path, before: str) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation())
    stream = ErrorStream(file, Redactor({SECRET: "KEY"}))
    for part in (before, SECRET[:5], SECRET[5:], " after"):
        stream.feed(part.encode())
    assert stream.tail().endswith("[redacted KEY] after")
    assert SECRET not in (tmp_path / "a.log").read_text()


def test_log_files_stay_below_their_size_and_old_ones_are_few(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation(max_bytes=100, keep=2))
    for number in range(50):
        file.write(f"line {number:02}\n")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 100 for path in tmp_path.iterdir())
    assert (tmp_path / "a.log").read_text().endswith("line 49\n")
    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) == 0o600
    assert tail_of(tmp_path / "a.log", 10) == "line 49\n"
    assert tail_of(tmp_path / "none.log", 10) == ""


def test_a_failure_tells_no_secret_in_any_part_of_its_result() -> None:
    told = {"why": [f"bad key {SECRET}", 3]}
    text = {"type": "text", "text": SECRET}
    outcome = CallOutcome(text=SECRET, is_error=True, structured=told, content=(text,), meta=told)
    safe = without_secrets(outcome, Redactor({SECRET: "KEY"}))
    assert SECRET not in repr(safe)
    assert safe.structured == safe.meta == {"why": ["bad key [redacted KEY]", 3]}


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "taken").write_text("a file, no folder")
    file = RotatingFile(tmp_path / "taken" / "a.log", Rotation())
    file.write("one\n")
    file.write("two\n")
    assert file.num_lost == 2
    assert caplog.text.count(f"cannot write {file.path}") == 1


def test_each_call_leaves_one_line_that_says_how_it_ended_and_not_what_it_said(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        await dock.call("a.echo", {"text": "private"}, session="s1", run="r1")
        await dock.call("a.fail", {"text": "private"})
        with pytest.raises(CallTimeout):
            await dock.call("a.hang", {}, timeout_seconds=0.2)
        with pytest.raises(InvalidArguments):
            await dock.call("a.list", {"items": "private"})
        pending = asyncio.create_task(dock.call("a.hang", {}))
        await asyncio.sleep(0.1)
        pending.cancel()
        await asyncio.wait([pending])

    spec = replace(odd("--tools", "echo,fail,hang,list"), serving=Serving(max_concurrency=1))
    play(DockConfig(servers=(spec,)), tmp_path, scene)
    lines = lines_of(tmp_path)
    outcomes = [(line["tool"], line["outcome"]) for line in lines]
    assert outcomes == [
        ("a.echo", "ok"),
        ("a.fail", "tool_error"),
        ("a.hang", "timeout"),
        ("a.list", "invalid_arguments"),
        ("a.hang", "cancelled"),
    ]
    assert (lines[0]["session"], lines[0]["run"], lines[0]["profile"]) == ("s1", "r1", "default")
    assert lines[0]["arguments"] == {"text": "text[7]"}
    assert lines[2]["error"].startswith("'hang' on tool server 'a' gave no answer within 0.2 s")
    assert lines[2]["seconds"] >= 0.2
    assert "private" not in (tmp_path / "calls.jsonl").read_text()


@pytest.mark.parametrize(("content", "arguments"), [("full", {"text": "said"}), ("off", None)])
def test_arguments_are_logged_whole_or_no_call_at_all_where_configured(
    tmp_path: Path, content: str, arguments: dict | None
) -> None:
    async def scene(dock: Dock) -> None:
        await dock.call("a.echo", {"text": "said"})

    play(DockConfig(servers=(odd(),), logs=LogOptions(calls=content)), tmp_path, scene)
    if arguments is None:
        assert not (tmp_path / "calls.jsonl").exists()
    else:
        assert lines_of(tmp_path)[0]["arguments"] == arguments


def test_the_call_log_is_rotated(tmp_path: Path) -> None:
    async def scene(dock: Dock) -> None:
        for _ in range(20):
            await dock.call("a.echo", {"text": "x"})

    text = '[server.a]\ncommand = "x"\n[logs]\nmax_bytes = 1024\nkeep = 1\ncalls = "shape"'
    logs = parse_config(text, Path("dock.toml")).logs
    play(DockConfig(servers=(odd(),), logs=logs), tmp_path, scene)
    assert sorted(path.name for path in tmp_path.glob("calls.jsonl*")) == ["calls.jsonl", "calls.jsonl.1"]
    assert (tmp_path / "calls.jsonl").stat().st_size <= 1024


def test_the_shape_of_arguments_tells_types_and_sizes() -> None:
    arguments = {"query": ["a", "b"], "n": 3, "deep": {"x": {"y": {"z": 1}}}, "none": None, "empty": []}
    assert shape(arguments) == {
        "query": "list[2] of str",
        "n": "int",
        "deep": {"x": {"y": "object[1]"}},
        "none": "null",
        "empty": "list[0]",
    }
