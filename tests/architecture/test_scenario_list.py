"""tests/scenarios.md lists every row of tests/cases/scenarios.md, with tests that exist or the issue that owes them."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROW = re.compile(r"\| (sc-\d{3}) \|")
NODE = re.compile(r"`([^`]+)::(test_\w+)`")
OWED = re.compile(r"(issue \d+|rollouts|trainer|engines|agentdock-2|agenttoleap)\b")


def rows(file: str) -> dict[str, list[str]]:
    """id -> the cells behind it."""
    lines = (ROOT / "tests" / file).read_text(encoding="utf-8").splitlines()
    found = [(match[1], line.split("|")[2:-1]) for line in lines if (match := ROW.match(line))]
    assert len(dict(found)) == len(found), "a row is listed twice"
    return dict(found)


@cache
def names_in(file: Path) -> frozenset[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_scenario_is_listed_and_nothing_else() -> None:
    assert list(rows("scenarios.md")) == list(rows("cases/scenarios.md"))


def test_every_scenario_has_a_test_or_an_issue_that_owes_it() -> None:
    without = [row for row, (shown, owed) in rows("scenarios.md").items() if not (NODE.search(shown) or owed.strip())]
    assert without == []
    nameless = [row for row, (_, owed) in rows("scenarios.md").items() if owed.strip() and not OWED.match(owed.strip())]
    assert nameless == []


def test_every_named_test_exists() -> None:
    named = [(row, *node) for row, (shown, _) in rows("scenarios.md").items() for node in NODE.findall(shown)]
    missing = [
        f"{row}: {file}::{name}"
        for row, file, name in named
        if not (ROOT / file).exists() or name not in names_in(ROOT / file)
    ]
    assert missing == []
    assert len(named) >= 80
