"""The commands that ask a running gateway, as users run them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"
KEY = "a-key-of-the-tests"


def environment(state: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "AGENTDOCK_TOKEN"}
    return kept | {"XDG_STATE_HOME": str(state)} | more


def agentdock(state: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "agentdock", *arguments]
    return subprocess.run(command, env=environment(state, **more), capture_output=True, text=True, timeout=60)


@contextmanager
def gateway(tmp_path: Path) -> Iterator[Path]:
    """A gateway of two servers, one of which says a word on its stderr; yields the user's folder for state."""
    state = tmp_path / "user"
    config = tmp_path / "dock.toml"
    config.write_text(
        f'[server.a]\ncommand = "{sys.executable}"\nargs = ["-S", "{ODD}", "--say-env", "WORD"]\n'
        f'env = {{WORD = "hello"}}\n'
        f'[server.b]\ncommand = "{sys.executable}"\nargs = ["-S", "{ODD}", "--tools", "echo"]\n'
        '[profile.small]\nservers = ["b"]\n'
    )
    command = [sys.executable, "-m", "agentdock", "up", str(config), "--port", "0"]
    process = subprocess.Popen(command, env=environment(state), stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (state / "agentdock" / "gateway.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield state
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def test_a_running_gateway_is_found_and_asked(tmp_path: Path) -> None:
    with gateway(tmp_path) as state:
        done = agentdock(state, "call", "a.echo", '{"text": "é 42"}')
        assert (done.returncode, done.stdout) == (0, "é 42\n")
        assert agentdock(state, "call", "echo", '{"text": "x"}', "--profile", "small").stdout == "x\n"
        failed = agentdock(state, "call", "a.fail", '{"text": "this"}')
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "tool_error: failed on this" in failed.stderr
        assert "unknown_tool" in agentdock(state, "call", "fail", "--profile", "small").stderr
        for given in ("{", "[1]"):
            assert agentdock(state, "call", "a.echo", given).returncode == 2
        tools = json.loads(agentdock(state, "tools", "--format", "anthropic", "--profile", "small").stdout)
        assert [(tool["name"], "input_schema" in tool) for tool in tools] == [("echo", True)]
        assert json.loads(agentdock(state, "tools", "--profile", "small").stdout)[0]["type"] == "function"
        assert "my key is" in agentdock(state, "logs", "a").stdout
        unknown = agentdock(state, "logs", "c")
        assert (unknown.returncode, "there are a" in unknown.stderr) == (2, True)
        token = agentdock(state, "token").stdout.strip()
        assert token == (state / "agentdock" / "token").read_text().strip()
        assert "end it, then rotate" in agentdock(state, "token", "rotate").stderr
    assert agentdock(state, "token", "rotate").returncode == 0
    assert agentdock(state, "token", "show").stdout.strip() not in ("", token)


def test_without_a_gateway_the_way_to_start_one_is_named(tmp_path: Path) -> None:
    for command in (("call", "a.echo"), ("tools",)):
        done = agentdock(tmp_path, *command)
        assert (done.returncode, done.stdout) == (2, "")
        assert "agentdock up" in done.stderr
    assert "a gateway writes it" in agentdock(tmp_path, "token").stderr
    assert "AGENTDOCK_TOKEN" in agentdock(tmp_path, "token", AGENTDOCK_TOKEN=KEY).stderr


def test_logs_are_followed_until_interrupted(tmp_path: Path) -> None:
    log = tmp_path / "agentdock" / "logs" / "a.log"
    log.parent.mkdir(parents=True)
    log.write_text("first\n")
    command = [sys.executable, "-m", "agentdock", "logs", "a", "--follow"]
    process = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "first\n"
        with log.open("a") as file:
            file.write("second\n")
        assert process.stdout.readline() == "second\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.wait()
