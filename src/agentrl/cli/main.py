"""The ``agentrl`` command: finds the command's module, and turns errors into one message and an exit code."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Callable, Sequence

from agentrl import __version__
from agentrl.cli.exits import tell
from agentrl.config.names import nearest
from agentrl.errors import AgentRLError, ConfigError, Interrupted

COMMANDS = {
    "quickstart": ("agentrl.cli.quickstart", "train a small agent on this machine's CPU and watch it learn"),
    "run": ("agentrl.cli.run", "start engine, tools, sampler and trainer of a CONFIG on this host"),
    "train": ("agentrl.cli.train", "the trainer; starts this node's engine and sampler by default"),
    "sample": ("agentrl.cli.sample", "a sampler alone (no torch)"),
    "node": ("agentrl.cli.node", "engine, sampler and evaluation beside trainers started elsewhere"),
    "status": ("agentrl.cli.status", "where a run stands, and who in it waits for whom"),
    "store": ("agentrl.cli.store", "list the runs of a store, or delete one"),
    "eval": ("agentrl.cli.evaluate", "a model on held-out tasks: success with its standard error"),
    "serve": ("agentrl.cli.serve", "the embedded engine over HTTP"),
    "sft": ("agentrl.cli.sft", "supervised training on dialogues with tool calls"),
    "ask": ("agentrl.cli.ask", "one question, answered with tools, turn by turn"),
    "tiny-model": ("agentrl.cli.tiny_model", "build the quickstart's small model from scratch"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(overview())
        return 0
    if arguments[0] == "--version":
        print(f"agentrl {__version__}")
        return 0
    try:
        log_to_stderr(os.environ.get("LOG_LEVEL", "INFO"))
        return command(arguments[0])(arguments[1:])
    except AgentRLError as error:
        return tell(error)
    except KeyboardInterrupt:
        return tell(Interrupted("interrupted"))


def log_to_stderr(level: str) -> None:
    if level.upper() not in logging.getLevelNamesMapping():
        raise ConfigError(f"{level!r} is no level; DEBUG, INFO, WARNING or ERROR", setting="LOG_LEVEL")
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def command(name: str) -> Callable[[Sequence[str]], int]:
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS, prefix="agentrl ")
        raise ConfigError(f"unknown command {name!r}{hint}; agentrl --help lists them")
    return importlib.import_module(COMMANDS[name][0]).main


def overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: agentrl COMMAND [--config FILE] [--OPTION VALUE ...]",
            "",
            *lines,
            "",
            "agentrl COMMAND --help lists options",
        ]
    )
