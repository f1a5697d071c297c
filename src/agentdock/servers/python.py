"""``python -m agentdock.servers.python``: the tool ``execute_code`` runs Python code in a fresh, limited process."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agentdock.sandbox.limits import Execution, Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS, TierMissing
from agentdock.servers.serve import Answer, ServedTool, serve

MAX_CODE_CHARACTERS = 200_000


def code_tool(sandbox: Sandbox) -> ServedTool:
    async def execute(arguments: dict[str, Any]) -> Answer:
        code = arguments["code"]
        if len(code) > MAX_CODE_CHARACTERS:
            return Answer(
                text=f"the code has {len(code)} characters; at most {MAX_CODE_CHARACTERS} are run", is_error=True
            )
        return answer(await sandbox.run(code))

    return ServedTool(
        name="execute_code",
        description="Run Python code in a fresh process and return what it prints. Nothing is kept between calls.",
        parameters={
            "type": "object",
            "properties": {"code": {"type": "string", "description": "a program; print what you want to see"}},
            "required": ["code"],
            "additionalProperties": False,
        },
        run=execute,
        read_only=False,
    )


def answer(execution: Execution) -> Answer:
    """Output as the model reads it; the parts, the tier and the flags beside it."""
    parts = [execution.stdout.rstrip("\n")] if execution.stdout else []
    if execution.stderr:
        parts.append("[stderr]\n" + execution.stderr.rstrip("\n"))
    if execution.stopped:
        parts.append(f"[stopped at the {execution.stopped}]")
    elif execution.exit_code != 0:
        parts.append(f"[exit code {execution.exit_code}]")
    structured = {
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "exit_code": execution.exit_code,
        "stopped": execution.stopped,
        "truncated": execution.truncated,
        "seconds": round(execution.seconds, 3),
        **asdict(execution.containment),
    }
    text = "\n".join(parts) or "[no output]"
    return Answer(text=text, is_error=bool(execution.stopped) or execution.exit_code != 0, structured=structured)


def parse_options(arguments: Sequence[str] | None) -> Sandbox:
    default = Limits()
    parser = argparse.ArgumentParser(prog="agentdock.servers.python", description=__doc__)
    parser.add_argument("--wall-seconds", type=float, default=default.wall_seconds)
    parser.add_argument("--cpu-seconds", type=int, default=default.cpu_seconds)
    parser.add_argument("--memory-mb", type=int, default=default.memory_bytes // 1024**2)
    parser.add_argument("--file-mb", type=int, default=default.file_bytes // 1024**2)
    parser.add_argument("--processes", type=int, default=default.processes)
    parser.add_argument("--output-kb", type=int, default=default.output_bytes // 1024)
    parser.add_argument("--disk-mb", type=int, default=default.disk_bytes // 1024**2)
    parser.add_argument("--open-files", type=int, default=default.open_files)
    parser.add_argument("--network", action="store_true", help="let the code reach the network")
    parser.add_argument("--tier", choices=("auto", *TIERS), default="auto", help="use this tier and no other")
    parser.add_argument("--min-tier", choices=TIERS, default="limits", help="refuse to start below this tier")
    parser.add_argument("--image", default="", help="container image with python3; enables the tier 'container'")
    parser.add_argument("--parallel", type=int, default=max(2, os.cpu_count() or 2))
    options = parser.parse_args(arguments)
    limits = Limits(
        wall_seconds=options.wall_seconds,
        cpu_seconds=options.cpu_seconds,
        memory_bytes=options.memory_mb * 1024**2,
        file_bytes=options.file_mb * 1024**2,
        processes=options.processes,
        disk_bytes=options.disk_mb * 1024**2,
        open_files=options.open_files,
        output_bytes=options.output_kb * 1024,
        network=options.network,
    )
    tiers = TIERS if options.tier == "auto" else (options.tier,)
    return Sandbox(limits, parallel=options.parallel, tiers=tiers, min_tier=options.min_tier, image=options.image)


def main() -> None:
    sandbox = parse_options(None)
    try:
        asyncio.run(sandbox.require())
    except TierMissing as error:
        sys.exit(str(error))
    serve(code_tool(sandbox))


if __name__ == "__main__":
    main()
