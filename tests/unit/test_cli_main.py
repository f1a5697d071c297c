"""The command itself: exit codes, help, and that reading help loads no torch."""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from agentrl import __version__
from agentrl.cli.main import COMMANDS, main, overview
from agentrl.errors import ConfigError, Interrupted, ProcessDied


def failing(error: BaseException) -> Any:
    def run(argv: Sequence[str]) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("is wrong", setting="--seed"), 2, "agentrl: error: --seed: is wrong"),
        (ProcessDied("the engine process ended"), 1, "agentrl: ProcessDied: the engine process ended"),
        (Interrupted("stopped after step 3"), 130, "agentrl: stopped after step 3"),
        (KeyboardInterrupt(), 130, "agentrl: interrupted"),
    ],
)
def test_an_error_is_one_message_and_its_exit_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agentrl.cli.run.main", failing(error))
    assert main(["run"]) == code
    assert capsys.readouterr().err == f"{said}\n"


def test_success_is_zero_and_the_command_gets_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    def run(argv: Sequence[str]) -> int:
        given.extend(argv)
        return 0

    monkeypatch.setattr("agentrl.cli.run.main", run)
    assert main(["run", "run.yaml", "--seed=1"]) == 0
    assert given == ["run.yaml", "--seed=1"]


def test_a_mistake_of_ours_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.cli.run.main", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["run"])


def test_an_unknown_command_is_named_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstar"]) == 2
    assert "unknown command 'quickstar'; did you mean agentrl quickstart?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "unknown command 'xyzzy'; agentrl --help lists them" in capsys.readouterr().err


def test_a_wrong_option_of_a_command_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--sed=1"]) == 2
    assert "--sed: unknown option; did you mean --seed?" in capsys.readouterr().err
    assert main(["sample"]) == 2
    assert "--run_name: a sampler works for a run" in capsys.readouterr().err


def test_a_wrong_log_level_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LOG_LEVEL", "loud")
    assert main(["sample"]) == 2
    assert "LOG_LEVEL: 'loud' is no level; DEBUG, INFO, WARNING or ERROR" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_lists_every_command_and_fits_a_screen(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines)
    assert all(any(line.startswith(f"  {name} ") for line in lines) for name in COMMANDS)
    assert printed == overview() + "\n"


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"agentrl {__version__}\n"


HELP = """
import sys
from agentrl.cli import main
try:
    main([sys.argv[1], "--help"])
except SystemExit as ended:
    assert not ended.code, ended.code
assert "torch" not in sys.modules, "torch was imported"
"""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_needs_no_torch(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HELP, name], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    assert f"usage: agentrl {name}" in done.stdout
    assert "OUT_DIR" in done.stdout or "--config FILE" in done.stdout


def test_python_dash_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentrl", "nothing"], capture_output=True, text=True, timeout=60, env=os.environ
    )
    assert done.returncode == 2
    assert done.stderr.startswith("agentrl: error: unknown command 'nothing'")
