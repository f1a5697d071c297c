"""``--mcp_manager_url``: what is accepted, and errors that name file and key."""

import sys
from pathlib import Path

import pytest

from agentdock.spec import BUILTIN
from agentrl.errors import ConfigError
from agentrl.tools import parse_sources


def test_commands_are_split_and_named_after_what_they_run() -> None:
    specs = parse_sources(["stdio:python -m my.server --root 'a b'", "stdio:/opt/bin/tool.sh x", "stdio:python web.py"])
    assert [(spec.name, spec.command, spec.args) for spec in specs] == [
        ("server", "python", ("-m", "my.server", "--root", "a b")),
        ("tool", "/opt/bin/tool.sh", ("x",)),
        ("web", "python", ("web.py",)),
    ]


def test_built_in_servers_run_under_this_interpreter_and_repeats_get_a_number() -> None:
    first, second = parse_sources(["builtin:calculator", "builtin:calculator --x"])
    assert (first.name, second.name) == ("calculator", "calculator-2")
    assert first.command == sys.executable
    assert second.args == ("-m", "agentdock.servers.calculator", "--x")


@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_an_mcp_servers_file_gives_all_its_servers(tmp_path: Path, suffix: str) -> None:
    texts = {
        "json": '{"mcpServers": {"a": {"command": "x", "args": ["1"], "env": {"K": "${V}"}, "cwd": "sub",'
        ' "start_timeout_seconds": 5, "idempotent_tools": ["get"]}, "b": {"command": "y"}}}',
        "toml": '[mcpServers.a]\ncommand = "x"\nargs = ["1"]\nenv = {K = "${V}"}\ncwd = "sub"\n'
        'start_timeout_seconds = 5\nidempotent_tools = ["get"]\n[mcpServers.b]\ncommand = "y"\n',
    }
    path = tmp_path / f"servers.{suffix}"
    path.write_text(texts[suffix])
    a, b = parse_sources(str(path))
    assert (a.name, a.command, a.args, a.env, a.cwd) == ("a", "x", ("1",), {"K": "${V}"}, str(tmp_path / "sub"))
    assert (a.start_timeout_seconds, a.idempotent_tools) == (5.0, frozenset({"get"}))
    assert (b.name, b.command, b.args) == ("b", "y", ())


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not valid JSON"),
        ('{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}}}', "key 'a' appears twice"),
        ("[]", "expected an object with the key mcpServers"),
        ('{"servers": {}}', "key mcpServers is missing or empty"),
        ('{"mcpServers": {"a": "x"}}', "mcpServers.a is str 'x'; expected an object"),
        ('{"mcpServers": {"a": {}}}', "mcpServers.a.command is missing"),
        ('{"mcpServers": {"a": {"command": "x", "args": "1"}}}', "mcpServers.a.args is str '1'; expected a list"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"K": 1}}}}', "mcpServers.a.env.K is int 1; expected a text"),
        ('{"mcpServers": {"a": {"command": "x", "argv": []}}}', "mcpServers.a.argv is not known; known keys are type"),
        ('{"mcpServers": {"a": {"url": "http://h"}}}', "mcpServers.a.url: HTTP tool sources arrive with AgentDock"),
        ('{"mcpServers": {"a": {"command": "x", "type": "sse"}}}', "mcpServers.a.type is 'sse'"),
        ('{"mcpServers": {"a": {"command": "x", "start_timeout_seconds": true}}}', "expected a number above 0"),
    ],
)
def test_a_bad_file_is_refused_by_file_and_key(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "servers.json"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        parse_sources(str(path))
    assert str(path) in str(error.value)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://localhost:9000/mcpapi", "use stdio: or a mcpServers file"),
        ("https://host/mcp", "HTTP tool sources arrive with AgentDock's gateway"),
        ("stdio:", "names no command"),
        ("stdio:python 'x", "No closing quotation"),
        ("builtin:calc", f"no built-in server 'calc'; there are {', '.join(BUILTIN)}"),
        ("nowhere.json", "neither stdio:COMMAND, builtin:NAME nor a file that exists"),
    ],
)
def test_a_bad_source_is_refused_with_what_is_accepted(url: str, problem: str) -> None:
    with pytest.raises(ConfigError, match="mcp_manager_url: ") as error:
        parse_sources(url)
    assert problem in str(error.value)


def test_two_files_may_not_name_a_server_alike(tmp_path: Path) -> None:
    path = tmp_path / "servers.json"
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    with pytest.raises(ConfigError, match="names a server 'a' that another source has too"):
        parse_sources([str(path), str(path)])
