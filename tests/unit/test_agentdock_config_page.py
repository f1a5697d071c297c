"""docs/agentdock-config.md lists exactly the keys that a configuration accepts."""

import re
from pathlib import Path

import pytest

from agentdock.config import ConfigProblem, parse_config

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "agentdock-config.md").read_text()
KNOWN = re.compile(r"zzzz: is not known here; known are (.*)")
FOREIGN = {"alwaysAllow", "autoApprove", "description", "encoding", "encoding_error_handler"}
TABLES = {
    "server.NAME": ('[server.a]\ncommand = "x"', '[server.a]\nurl = "https://x"', '[server.python]\nkind = "builtin"'),
    "gateway": ('[server.a]\ncommand = "x"\n[gateway]',),
    "logs": ('[server.a]\ncommand = "x"\n[logs]',),
    "profile.NAME": ('[server.a]\ncommand = "x"\n[profile.a]',),
}


def documented(table: str) -> set[str]:
    section = PAGE.partition(f"## `[{table}]`")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE))


def accepted(table: str) -> set[str]:
    """The reader names what it knows when it meets a key that it does not."""
    keys: set[str] = set()
    for text in TABLES[table]:
        with pytest.raises(ConfigProblem) as caught:
            parse_config(f"{text}\nzzzz = 1", Path("dock.toml"))
        (known,) = KNOWN.findall(str(caught.value))
        keys |= set(known.split(", "))
    return keys - FOREIGN


@pytest.mark.parametrize("table", TABLES)
def test_every_key_is_documented_and_every_documented_key_is_accepted(table: str) -> None:
    assert documented(table) == accepted(table)


def test_every_table_is_documented() -> None:
    with pytest.raises(ConfigProblem) as caught:
        parse_config('zzzz = 1\n[server.a]\ncommand = "x"', Path("dock.toml"))
    tables = set(KNOWN.findall(str(caught.value))[0].split(", ")) - {"mcpServers"}
    assert tables == {
        heading.removesuffix(".NAME") for heading in re.findall(r"^## `\[([\w.]+)\]`", PAGE, re.MULTILINE)
    }


def test_the_example_of_the_page_is_a_configuration() -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert [spec.name for spec in parse_config(example, Path("dock.toml")).servers] == ["web", "facts", "docs"]
