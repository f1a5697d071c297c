"""Flags and YAML files: every form of a value, and what is said about a wrong one."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentrl.config import RunConfig
from agentrl.config.groups import option
from agentrl.config.parser import parse_groups
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Some of each kind"""

    name: str = option("", "a text")
    steps: int = option(3, "a number")
    rate: float = option(0.5, "another")
    cap: float | None = option(None, "a number or none")
    mask: bool | None = option(None, "a switch or none")
    shared: bool = option(False, "a switch")
    tools: list[str] = option([], "texts")  # noqa: RUF009
    sampling: dict[str, Any] = option({}, "a mapping")  # noqa: RUF009
    loss_calculater: str = option("GRPO", "a choice, 100% sure", choices=("GRPO", "no"), alias="loss")


def parse(*argv: str) -> Options:
    return parse_groups([Options], argv, command="test")[Options]


def parse_file(tmp_path: Path, text: str, *argv: str) -> Options:
    (tmp_path / "run.yaml").write_text(text)
    return parse("--config", str(tmp_path / "run.yaml"), *argv)


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(*argv)
    return str(raised.value)


def file_refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse_file(tmp_path, text)
    assert str(tmp_path / "run.yaml") in str(raised.value)
    return str(raised.value)


# --- Flags -------------------------------------------------------------------------------------------------------


def test_without_flags_every_option_has_its_default() -> None:
    assert parse() == Options()
    assert parse().tools is not parse().tools


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--shared"], True),
        (["--shared", "true"], True),
        (["--shared", "False"], False),
        (["--shared=no"], False),
        (["--shared", "1"], True),
        (["--shared", "--shared=0"], False),
    ],
)
def test_a_switch_is_a_bare_flag_or_has_a_value(words: list[str], expected: bool) -> None:
    assert parse(*words).shared is expected


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (["--name", "a b"], {"name": "a b"}),
        (["--name=a=b"], {"name": "a=b"}),
        (["--name="], {"name": ""}),
        (["--steps", "-1"], {"steps": -1}),
        (["--rate", "1e-4"], {"rate": 1e-4}),
        (["--cap", "4"], {"cap": 4.0}),
        (["--cap", "none"], {"cap": None}),
        (["--cap", "4", "--cap", "None"], {"cap": None}),
        (["--mask", "false"], {"mask": False}),
        (["--mask"], {"mask": True}),
        (["--tools", "a", "b"], {"tools": ["a", "b"]}),
        (["--tools=stdio:python -m x --flag"], {"tools": ["stdio:python -m x --flag"]}),
        (["--tools"], {"tools": []}),
        (["--sampling", '{"temperature": 0.7}'], {"sampling": {"temperature": 0.7}}),
        (["--loss", "no"], {"loss_calculater": "no"}),
        (["--loss-calculater", "no"], {"loss_calculater": "no"}),
        (["--loss_calculater=no"], {"loss_calculater": "no"}),
        (["--steps", "1", "--steps", "2"], {"steps": 2}),
    ],
)
def test_a_flag_sets_its_option_and_nothing_else(words: list[str], changed: dict[str, Any]) -> None:
    assert parse(*words) == dataclasses.replace(Options(), **changed)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stepz", "1"], "--stepz: unknown option; did you mean --steps?"),
        (["--quite-another"], "--quite-another: unknown option"),
        (["--st", "1"], "--st: unknown option"),
        (["--steps", "many"], "--steps: invalid int value: 'many'"),
        (["--steps", "1.5"], "--steps: invalid int value: '1.5'"),
        (["--steps"], "--steps: expected one argument"),
        (["--rate", "fast"], "--rate: invalid float value: 'fast'"),
        (["--steps", "none"], "--steps: invalid int value: 'none'"),
        (["--shared", "maybe"], "--shared: invalid bool value: 'maybe'"),
        (["--sampling", "{temperature: 1}"], "--sampling: invalid JSON mapping value: '{temperature: 1}'"),
        (["--sampling", "[1]"], "--sampling: invalid JSON mapping value: '[1]'"),
        (["--loss", "PPO"], "--loss_calculater/--loss: invalid choice: 'PPO' (choose from "),
        (["--tools", "a", "--tools", "b"], "--tools: is given twice: put all its values after one"),
        (["stray"], "stray belongs to no option: a value follows its --OPTION"),
        (["--config"], "--config: expects the path of a YAML file"),
        (["--config", "--steps"], "--config: expects the path of a YAML file"),
    ],
)
def test_a_wrong_flag_is_named_with_what_was_seen(words: list[str], message: str) -> None:
    assert refusal(*words).startswith(message)


# --- Files -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("rate: 1e-4", {"rate": 1e-4}),
        ("rate: .inf", {"rate": float("inf")}),
        ("steps: 1_000", {"steps": 1000}),
        ("shared: true", {"shared": True}),
        ("shared: on", {"shared": True}),
        ("shared: off", {"shared": False}),
        ("cap: null", {"cap": None}),
        ("mask:", {"mask": None}),
        ("tools: [a, 'b c']", {"tools": ["a", "b c"]}),
        ("tools: []", {"tools": []}),
        ("tools: builtin:calculator", {"tools": ["builtin:calculator"]}),
        ("sampling: {temperature: 0.7, top_k: 5}", {"sampling": {"temperature": 0.7, "top_k": 5}}),
        ("sampling: '{\"temperature\": 0.7}'", {"sampling": {"temperature": 0.7}}),
        ("loss: no", {"loss_calculater": "no"}),
        ("name: no", {"name": "no"}),
        ("name: 0123", {"name": "0123"}),
        ("name: 2026-01-02", {"name": "2026-01-02"}),
        ("name: ''", {"name": ""}),
        ("name: 'null'", {"name": "null"}),
        ("name: --x", {"name": "--x"}),
    ],
)
def test_a_line_of_a_file_means_what_it_looks_like(tmp_path: Path, line: str, changed: dict[str, Any]) -> None:
    assert parse_file(tmp_path, line) == dataclasses.replace(Options(), **changed)


def test_flags_win_over_files_wherever_they_stand_and_later_files_over_earlier(tmp_path: Path) -> None:
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("steps: 1\nname: first\ntools: [a]\nrate: 2\n")
    second.write_text("name: second\n")
    parsed = parse("--steps=9", f"--config={first}", "--tools", "b", "--config", str(second))
    assert parsed == Options(steps=9, name="second", tools=["b"], rate=2.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz: 1", "line 1: unknown key 'stepz'; did you mean steps?"),
        ("name: a\n1: b", "line 2: unknown key '1'"),
        ("steps: 1\n\nsteps: 2", "line 3: steps is there already, in line 1"),
        ("steps:", "line 1: steps has no value"),
        ("tools:", "line 1: tools has no value"),
        ("steps: [1, 2]", "line 1: steps expects one value, found a list"),
        ("name: {a: 1}", "line 1: name expects one value, found NAME: VALUE pairs"),
        ("tools: {a: 1}", "line 1: tools expects a list, found NAME: VALUE pairs"),
        ("tools: [[a]]", "line 1: tools expects a list of texts"),
        ("sampling: [1]", "line 1: sampling expects NAME: VALUE pairs, found a list"),
        ("sampling: {when: 2026-01-02}", "sampling: Object of type date"),
        ("name: [a", "is not YAML"),
        ("- steps", "expects NAME: VALUE lines, found a list"),
        ("", "expects NAME: VALUE lines, found nothing"),
        ("hello", "expects NAME: VALUE lines, found one value"),
    ],
)
def test_a_wrong_file_is_named_with_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    assert message in file_refusal(tmp_path, text)


def test_a_wrong_value_in_a_file_names_file_and_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--config .*run\.yaml: --steps: invalid int value: 'many'"):
        parse_file(tmp_path, "steps: many")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "no-such.yaml: cannot be read: No such file" in refusal("--config", str(tmp_path / "no-such.yaml"))
    (tmp_path / "latin.yaml").write_bytes("name: caf\xe9".encode("latin-1"))
    assert "latin.yaml: is not UTF-8" in refusal("--config", str(tmp_path / "latin.yaml"))


# --- Whole configurations ----------------------------------------------------------------------------------------


def test_a_saved_configuration_is_the_configuration(tmp_path: Path) -> None:
    config = RunConfig.parse(
        [
            "--run_name=no",
            "--learning_rate=1e-6",
            "--is_cap=2",
            "--eval_strategy=no",
            '--eval_sampling_params={"top_p": 0.9}',
            "--mcp_manager_url",
            "stdio:python -c 'print(1)' --flag",
            "builtin:lookup",
            "--out_of_bound_mask=false",
            "--max_grad_norm=inf",
        ],
        command="test",
    )
    config.save(tmp_path / "deep" / "config.yaml")
    assert RunConfig.parse(["--config", str(tmp_path / "deep" / "config.yaml")], command="test") == config


def test_names_are_unique_over_all_groups() -> None:
    config = RunConfig.parse([], command="test")
    groups = config.groups
    assert len(config.flat()) == sum(len(dataclasses.fields(group)) for group in groups)


def test_help_names_every_option_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse("--help")
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "Some of each kind" in printed
    assert "a number (default: 3)" in printed
    assert "a choice, 100% sure (default: GRPO)" in printed
