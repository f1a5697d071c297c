"""Pages keep their word: every program in them is run or says why not, links lead somewhere, both languages agree."""

import ast
import re
from pathlib import Path

import pytest
from pages import PAGES, PROGRAMS, ROOT, blocks, play

from agentrl import DISTRIBUTION

QUICK_PAGES = ("task-files.md", "custom-tool.md", "custom-scorer.md")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
INSTALL = re.compile(r"pip3? install\s+(?:-\S+\s+)*['\"]?([A-Za-z][\w.-]*)")
SOURCES = [*PAGES, *sorted((ROOT / "src").rglob("*.py")), *ROOT.glob("*.sh"), ROOT / "requirements.txt"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_program_of_a_page_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.language in PROGRAMS:
            assert block.role == "run" or block.role.startswith(("file: ", "not run: ")), block.text
        if block.language == "python":
            ast.parse(block.text)


@pytest.mark.parametrize("name", QUICK_PAGES)
def test_the_programs_of_a_page_work(name: str, tmp_path: Path) -> None:
    play(ROOT / "docs" / name, tmp_path, timeout=60)


def test_both_languages_have_the_same_programs() -> None:
    english, chinese = ([b for b in blocks(ROOT / name) if b.role] for name in ("README.md", "README_zh.md"))
    assert [(b.role.partition(": ")[0], without_comments(b.text)) for b in english] == [
        (b.role.partition(": ")[0], without_comments(b.text)) for b in chinese
    ]


def without_comments(text: str) -> str:
    return re.sub(r" +# .*", "", text)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("name", ["README.md", "README_zh.md"])
def test_the_notice_comes_first(name: str) -> None:
    title, notice = (ROOT / name).read_text(encoding="utf-8").split("\n\n")[:2]
    assert title == "# AgentRL"
    assert "OpenBMB" in notice
    assert DISTRIBUTION in notice


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_install_hints_name_the_distribution_and_no_registry(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert not {"agentrl", "agentdock", "agenttoleap"} & set(INSTALL.findall(text))
    hosts = set(re.findall(r"https?://([\w.-]+)", text)) - {"HOST", "127.0.0.1", "localhost"}
    assert not {host for host in hosts if re.search(r"pypi|mirror|proxy|index", host)}
