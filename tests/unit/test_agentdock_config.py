"""Configurations as people write them: our TOML, the reference's file, other programs' JSON, and their mistakes."""

import sys
from pathlib import Path

import pytest

from agentdock.config import ConfigProblem, load_config, parse_config
from agentdock.spec import BUILTIN, BUILTIN_CONFIGURED

OURS = """
[gateway]
port = 9000
allowed_hosts = ["dock.example"]
call_timeout_seconds = 5

[server.calculator]
kind = "builtin"

[server.facts]
builtin = "lookup"
args = ["--corpus", "corpus.jsonl"]
aliases = ["wiki"]

[server.web]
command = "search-server"
args = ["--fast"]
cwd = "tools"
env = { SERPER_API_KEY = "${SERPER_API_KEY}" }
idempotent_tools = ["search"]

[server.old]
command = "old-server"
disabled = true

[profile.research]
servers = ["web", "facts"]
tools = ["web.*", "facts.lookup"]

[aliases]
find = "web.search"
"""

REFERENCE = """
[mcpServers.python]
command = "node"
args = ["/app/mcp_servers/mcp_code_executor/build/index.js"]
encoding = "utf-8"
[mcpServers.python.env]
CODE_STORAGE_DIR = "/app/code_storage"

[mcpServers.web]
command = "mcp-search-server"
args = []
"""


def problems_of(text: str, name: str = "dock.toml") -> list[str]:
    with pytest.raises(ConfigProblem) as caught:
        parse_config(text, Path(name))
    return str(caught.value).splitlines()


def test_our_toml_is_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "dock.toml"
    file.write_text(OURS)
    config = load_config(file)
    calculator, facts, web = config.servers
    assert config.path == file
    assert calculator.args == ("-m", "agentdock.servers.calculator")
    assert (facts.name, facts.command, facts.serving.aliases) == ("facts", sys.executable, ("wiki",))
    assert facts.args[1:] == ("agentdock.servers.lookup", "--corpus", "corpus.jsonl")
    assert (web.command, web.cwd, web.idempotent_tools) == ("search-server", str(tmp_path / "tools"), {"search"})
    assert web.missing({}) == ("SERPER_API_KEY",)
    assert web.missing({"SERPER_API_KEY": "k"}) == ()
    assert set(config.profiles) == {"default", "research"}
    assert config.profiles["research"].tools == ("web.*", "facts.lookup")
    assert (config.gateway.port, config.gateway.allowed_hosts) == (9000, ("dock.example",))
    assert config.gateway.call_timeout_seconds == 5
    assert config.aliases == {"find": "web.search"}


def test_the_references_file_is_read_unchanged_and_what_does_nothing_is_noted() -> None:
    config = parse_config(REFERENCE, Path("config.toml"))
    assert [spec.name for spec in config.servers] == ["python", "web"]
    assert config.servers[0].env == {"CODE_STORAGE_DIR": "/app/code_storage"}
    assert config.notices == ("mcpServers.python.encoding has no effect here",)


def test_mcp_servers_json_is_read_unchanged() -> None:
    text = '{"mcpServers": {"a": {"type": "stdio", "command": "npx", "args": ["-y", "x"], "alwaysAllow": ["y"]}}}'
    config = parse_config(text, Path("claude.json"))
    assert (config.servers[0].command, config.servers[0].args) == ("npx", ("-y", "x"))
    assert config.notices == ("mcpServers.a.alwaysAllow has no effect here",)


def test_without_a_file_the_built_in_servers_run() -> None:
    config = load_config(None)
    assert {spec.name for spec in config.servers} == set(BUILTIN) - BUILTIN_CONFIGURED
    assert all(spec.missing({}) == () for spec in config.servers)


def test_all_mistakes_of_a_file_are_named_at_once_with_their_lines() -> None:
    text = """[gateway]
port = 70000

[server.a]
comand = "x"

[server.b]
command = "x"
args = [
  "long [",
  1,
]
env = { KEY = 1 }
disabled = "no"

[profile.p]
servers = ["c"]
[profle.q]
"""
    assert problems_of(text) == [
        "dock.toml:2: gateway.port: is int 70000; expected a whole number from 0 to 65535",
        "dock.toml:4: server.a.command: is missing; expected the program that serves MCP on its stdin and stdout",
        "dock.toml:5: server.a.comand: is not known here; did you mean 'command'?",
        "dock.toml:9: server.b.args: is list ['long [', 1]; expected a list of texts",
        "dock.toml:13: server.b.env.KEY: is int 1; expected a text",
        "dock.toml:14: server.b.disabled: is str 'no'; expected true or false",
        "dock.toml:17: profile.p.servers: names 'c', which is not configured; there are a, b",
        "dock.toml:18: profle: is not known here; did you mean 'profile'?",
    ]


def test_json_mistakes_are_named_with_their_lines() -> None:
    text = '{\n  "mcpServers": {\n    "a": {\n      "command": "x",\n      "args": "y"\n    }\n  }\n}'
    assert problems_of(text, "servers.json") == [
        "servers.json:5: mcpServers.a.args: is str 'y'; expected a list of texts"
    ]


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("[server.a]\ncommand = ", "dock.toml", "dock.toml:2: not valid TOML: Invalid value"),
        ('{"mcpServers": {\n"a": }', "dock.json", "dock.json:2: not valid JSON: Expecting value"),
        ('{"a": 1, "a": 2}', "dock.json", "dock.json: not valid JSON: key 'a' appears twice in one object"),
        ("[]", "dock.json", "dock.json:1: expected an object with the key mcpServers"),
        ("", "dock.toml", "dock.toml: no server is configured; expected tables [server.NAME] or mcpServers.NAME"),
        ('[server.x]\nkind = "http"', "d.toml", "d.toml:1: server.x.url: is missing; expected the address"),
        ('[server.x]\nurl = "ftp://x"', "d.toml", "d.toml:2: server.x.url: is 'ftp://x'; expected an address that"),
        ('[server.x]\nkind = "builtin"', "d.toml", "d.toml:1: server.x.builtin: is missing and 'x' is no built-in"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(text: str, name: str, problem: str) -> None:
    assert problems_of(text, name)[0].startswith(problem)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match=r"none\.toml: cannot be read: No such file"):
        load_config(tmp_path / "none.toml")
