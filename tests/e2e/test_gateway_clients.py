"""One suite for all who speak to the gateway: three generations of the official SDK and the reference's REST client.

Each SDK is installed into an environment of its own and runs there, against a gateway that is a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.timeout(600)]

TESTS = Path(__file__).resolve().parent.parent
ODD = TESTS / "tools_servers" / "odd.py"
CLIENTS = TESTS / "gateway_clients"
TOKEN = "a-token-of-the-tests"
# The first works with no newer pydantic.
GENERATIONS = {"1.9": ("mcp==1.9.4", "pydantic<2.12"), "1.30": ("mcp==1.30.0",), "2": ("mcp>=2,<3",)}
NO_INDEX = ("from versions: none", "connection", "timed out", "name resolution", "no matching distribution")
INSTALL_SECONDS = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    url: str
    calls: Path
    process: subprocess.Popen[bytes]

    def num_calls(self, tool: str) -> int:
        return self.calls.read_text().splitlines().count(f"call {tool}")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("gateway")
    calls = folder / "calls"
    calls.touch()
    args = ["-S", str(ODD), "--tools", "echo,fail,image", "--calls", str(calls)]
    config = folder / "dock.json"
    config.write_text(json.dumps({"mcpServers": {"a": {"command": sys.executable, "args": args}}}))
    command = [sys.executable, "-m", "agentdock", "up", str(config), "--port", "0", "--state-dir", str(folder)]
    process = subprocess.Popen(command, env=os.environ | {"AGENTDOCK_TOKEN": TOKEN}, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not (folder / "gateway.json").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield Gateway(url=json.loads((folder / "gateway.json").read_text())["url"], calls=calls, process=process)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def python_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The interpreter that has a generation of the SDK; skips the test where packages cannot be had."""
    made: dict[str, str] = {}

    def find(generation: str) -> str:
        if generation not in made:
            made[generation] = installed(tmp_path_factory.mktemp("sdk"), GENERATIONS[generation])
        return made[generation]

    return find


def installed(folder: Path, packages: tuple[str, ...]) -> str:
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--retries", "1", *packages]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode and any(sign in done.stderr.lower() for sign in NO_INDEX):
        pytest.skip(f"no package index: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return python


def told_by(python: str, script: str, *arguments: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, str(CLIENTS / script), *arguments]
    done = subprocess.run(
        command, env=environment | {"AGENTDOCK_TOKEN": TOKEN}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(facts: dict[str, Any]) -> None:
    """What every client must find, in this order and over one connection where it has one."""
    assert facts["tools"] == ["echo", "fail", "image"]
    assert facts["ok"] == [False, "é 42"]
    assert facts["failed"] == [True, "failed on this"]
    assert facts["unknown"].startswith("there is no tool '")
    assert facts["prompts"] == facts["resources"] == []
    assert facts["image"][:2] == [False, "image/png"]
    assert facts["image"][2].startswith("iVBORw0KGgo")
    assert facts["afterwards"] == [False, "still here"]


@pytest.mark.parametrize("generation", ["1.9", "1.30"])
def test_the_first_generations_of_the_sdk_find_all_they_expect(
    generation: str, gateway: Gateway, python_of: Callable[[str], str]
) -> None:
    check(told_by(python_of(generation), "sdk_1.py", gateway.url))


@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
def test_the_second_generation_finds_it_in_each_of_its_modes(
    mode: str, gateway: Gateway, python_of: Callable[[str], str]
) -> None:
    check(told_by(python_of("2"), "sdk_2.py", gateway.url, mode))


@pytest.mark.parametrize("form", [(), ("--legacy",)])
def test_the_references_rest_client_finds_it_in_both_forms_of_errors_and_repeats_no_failed_tool(
    form: tuple[str, ...], gateway: Gateway
) -> None:
    before = gateway.num_calls("fail")
    check(told_by(sys.executable, "mcpapi.py", gateway.url, *form))
    assert gateway.num_calls("fail") == before + 1
