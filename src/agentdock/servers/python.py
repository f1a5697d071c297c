"""``python -m agentdock.servers.python``: the tool ``execute_code`` runs Python code, contained and within limits."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentdock.reading.document import ReadProblem
from agentdock.reading.roots import Roots
from agentdock.sandbox import quantities
from agentdock.sandbox.limits import Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS, TierMissing
from agentdock.sandbox.workspace import PROGRAM
from agentdock.servers.execution import answer
from agentdock.servers.serve import Answer, ServedTool, serve

MAX_CODE_CHARACTERS = 200_000
MIN_SECONDS = 0.1
MAX_INPUTS = 32


class CodeTool:
    """``execute_code``: runs code in ``sandbox``, with copies of files below ``roots`` where there are any."""

    def __init__(self, sandbox: Sandbox, roots: Roots | None) -> None:
        self._sandbox = sandbox
        self._roots = roots

    async def execute(self, arguments: dict[str, Any]) -> Answer:
        code = arguments["code"]
        if len(code) > MAX_CODE_CHARACTERS:
            return Answer(
                text=f"the code has {len(code)} characters; at most {MAX_CODE_CHARACTERS} are run", is_error=True
            )
        try:
            inputs = await asyncio.to_thread(self._inputs, arguments.get("files", ()))
        except ReadProblem as problem:
            return Answer(text=str(problem), is_error=True)
        execution = await self._sandbox.run(code, wall_seconds=arguments.get("timeout"), inputs=inputs)
        return answer(execution)

    def as_served(self) -> ServedTool:
        limits = self._sandbox.limits
        network = "The network can be reached." if limits.network else "There is no network."
        properties: dict[str, Any] = {
            "code": {"type": "string", "description": "a program; print what you want to see"},
            "timeout": {
                "type": "number",
                "minimum": MIN_SECONDS,
                "maximum": limits.wall_seconds,
                "description": f"seconds after which the code is stopped; default {limits.wall_seconds:g}",
            },
        }
        if self._roots is not None:
            properties["files"] = {
                "type": "array",
                "items": {"type": "string"},
                "maxItems": MAX_INPUTS,
                "description": f"files to copy into the working folder, from: {self._roots}",
            }
        return ServedTool(
            name="execute_code",
            description=(
                "Run Python code in a fresh process and return what it prints and the value of a last expression. "
                f"Files that it writes are listed, images are shown. Nothing is kept between calls. {network}"
            ),
            parameters={
                "type": "object",
                "properties": properties,
                "required": ["code"],
                "additionalProperties": False,
                "examples": [{"code": "print(2 ** 100)"}, {"code": "sum(range(10))", "timeout": 5}],
            },
            run=self.execute,
            read_only=False,
            open_world=limits.network,
        )

    def _inputs(self, names: Sequence[str]) -> dict[str, bytes]:
        """The files by their last names; raise ``ReadProblem`` for one outside of the roots, or two of a name."""
        found: dict[str, bytes] = {}
        for name in names:
            assert self._roots is not None
            path = self._roots.find(name)
            if path.name == PROGRAM:
                raise ReadProblem(f"{name}: {PROGRAM} is the name of the program itself; copy the file to another name")
            if path.name in found:
                raise ReadProblem(f"{name}: there is already a file {path.name} among the files")
            found[path.name] = self._roots.bytes_of(path, max_bytes=self._sandbox.limits.file_bytes)
        return found


def build(arguments: Sequence[str] | None) -> tuple[CodeTool, Sandbox]:
    """The tool that the command line asks for; raise ``ValueError`` for roots that are not folders."""
    options = _options().parse_args(arguments)
    limits = Limits(
        wall_seconds=options.wall,
        cpu_seconds=max(1, round(options.cpu)),
        memory_bytes=options.memory,
        file_bytes=options.file_size,
        disk_bytes=options.disk,
        processes=options.pids,
        open_files=options.open_files,
        output_bytes=options.output,
        network=options.network,
    )
    tiers = TIERS if options.tier == "auto" else (options.tier,)
    sandbox = Sandbox(limits, parallel=options.parallel, tiers=tiers, min_tier=options.min_tier, image=options.image)
    return CodeTool(sandbox, Roots.of(options.root) if options.root else None), sandbox


def _options() -> argparse.ArgumentParser:
    default = Limits()
    parser = argparse.ArgumentParser(prog="agentdock.servers.python", description=__doc__, allow_abbrev=False)
    seconds, size, count = _typed(quantities.seconds), _typed(quantities.num_bytes), _typed(_count)
    parser.add_argument("--wall", type=seconds, default=default.wall_seconds, help="most time of one call: 30s")
    parser.add_argument("--cpu", type=seconds, default=default.cpu_seconds, help="CPU time of one process: 20s")
    parser.add_argument("--memory", type=size, default=default.memory_bytes, help="of a process, and of all: 2GiB")
    parser.add_argument("--pids", type=count, default=default.processes, help="processes and threads at once")
    parser.add_argument("--output", type=size, default=default.output_bytes, help="kept of stdout and of stderr")
    parser.add_argument("--file-size", type=size, default=default.file_bytes, help="of one file")
    parser.add_argument("--disk", type=size, default=default.disk_bytes, help="of all files in the working folder")
    parser.add_argument("--open-files", type=count, default=default.open_files)
    parser.add_argument("--network", action="store_true", help="let the code reach the network")
    parser.add_argument("--root", type=Path, action="append", help="a folder whose files calls may ask for; repeat")
    parser.add_argument("--tier", choices=("auto", *TIERS), default="auto", help="use this tier and no other")
    parser.add_argument("--min-tier", choices=TIERS, default="limits", help="refuse to start below this tier")
    parser.add_argument("--image", default="", help="container image with python3; enables the tier 'container'")
    parser.add_argument("--parallel", type=count, default=max(2, os.cpu_count() or 2), help="calls at once")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is no whole number above zero")
    return int(text)


def _typed(read: Any) -> Any:
    """``read`` as argparse wants it, so that its message is shown."""

    def checked(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def main() -> None:
    try:
        tool, sandbox = build(None)
        asyncio.run(sandbox.require())
    except (ValueError, TierMissing) as problem:
        sys.exit(str(problem))
    serve(tool.as_served())


if __name__ == "__main__":
    main()
