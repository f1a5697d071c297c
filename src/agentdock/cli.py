"""The command ``agentdock``: ``up`` runs the gateway, ``check`` tries a configuration, others ask a running gateway."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agentdock.asking import CannotAsk, ask
from agentdock.config import DEFAULT_PROFILE, ConfigProblem, DockConfig, load_config
from agentdock.discovery import RunningGateway, TokenProblem, announce, own_token, user_state_dir, withdraw
from agentdock.dock import Dock
from agentdock.gateway.app import CannotListen, serving
from agentdock.gateway.formats import FORMATS
from agentdock.watch import follow


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code: 0 done, 1 something is not usable, 2 cannot even start."""
    args = _parser().parse_args(argv)
    try:
        if args.command not in ("up", "check"):
            return ask(args)
        config = load_config(args.config)
        return asyncio.run(_up(config, args) if args.command == "up" else _check(config))
    except (ConfigProblem, TokenProblem, CannotListen, CannotAsk) as error:
        print(f"agentdock: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentdock", description="Tool servers behind one gateway.")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="run the tool servers and the gateway until SIGTERM or SIGINT")
    check = commands.add_parser("check", help="start every server once, list its tools, say what is missing")
    for command in (up, check):
        command.add_argument("config", nargs="?", type=Path, help="TOML or mcpServers JSON; else the built-in tools")
    up.add_argument("--host", help="address to listen on (loopback)")
    up.add_argument("--port", type=int, help="port to listen on; 0 takes a free one")
    up.add_argument("--state-dir", type=Path, help="folder of logs, token and gateway.json")
    up.add_argument("--token-file", type=Path, help="file of the token; written if it does not exist")
    _add_asking(commands)
    return parser


def _add_asking(commands: Any) -> None:
    call = commands.add_parser("call", help="call a tool of the running gateway and print what it says")
    call.add_argument("tool", help="its id SERVER.TOOL, or its name where only one tool has it")
    call.add_argument("arguments", nargs="?", default="{}", help="a JSON object ({})")
    tools = commands.add_parser("tools", help="print the tools of the running gateway as a model API takes them")
    tools.add_argument("--format", choices=FORMATS, default="openai")
    logs = commands.add_parser("logs", help="print the end of what a tool server wrote to its stderr")
    logs.add_argument("server")
    logs.add_argument("--follow", action="store_true", help="go on with what it writes, until SIGINT")
    token = commands.add_parser("token", help="print the token, or put a new one in its place")
    token.add_argument("action", nargs="?", choices=("show", "rotate"), default="show")
    for command in (call, tools):
        command.add_argument("--profile", default=DEFAULT_PROFILE, help=f"({DEFAULT_PROFILE})")
    for command in (call, tools, logs, token):
        command.add_argument("--state-dir", type=Path, help="folder of the gateway, as given to up")


async def _up(config: DockConfig, args: argparse.Namespace) -> int:
    given = {name: value for name in ("host", "port") if (value := getattr(args, name)) is not None}
    config = replace(config, gateway=replace(config.gateway, **given))
    state_dir = (args.state_dir or user_state_dir()).resolve()
    token_file = args.token_file.resolve() if args.token_file else None
    token = own_token(state_dir, token_file)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    dock = Dock(config, state_dir=state_dir)
    try:
        async with serving(dock, token=token) as url:
            start = asyncio.create_task(dock.start())
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait({start, ended}, return_when=asyncio.FIRST_COMPLETED)
            _report(dock)
            print(f"gateway {url}, REST at {url}/mcpapi; {token.place}", flush=True)
            running = RunningGateway(
                url=url, pid=os.getpid(), token_file=str(token.file or ""), state_dir=str(state_dir)
            )
            announced = announce(running, state_dir)
            following = asyncio.create_task(follow(dock, partial(print, flush=True)))
            try:
                await ended
            finally:
                following.cancel()
                withdraw(announced, os.getpid())
                start.cancel()
    finally:
        await dock.close()
    return 0


async def _check(config: DockConfig) -> int:
    with tempfile.TemporaryDirectory(prefix="agentdock-check-") as folder:
        dock = Dock(config, state_dir=Path(folder))
        try:
            await dock.start(settle_seconds=60.0)
            _report(dock)
            for tool in dock.tools():
                print(f"  {tool.id}")
            return 1 if dock.unready() else 0
        finally:
            await dock.close()


def _report(dock: Dock) -> None:
    for notice in dock.config.notices:
        print(f"note: {notice}")
    for status in dock.servers():
        missing = f"; not set: {', '.join(status.missing)}" if status.missing else ""
        reason = f": {status.reason}" if status.reason else ""
        print(f"{status.name}: {status.state}, {status.num_tools} tools{missing}{reason}", flush=True)
