"""``agentrl tiny-model OUT_DIR``: build the quickstart's small model from scratch, as the shipped one was."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from agentrl.cli.preflight import require_torch


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="agentrl tiny-model", description=__doc__)
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder to write the model to")
    parser.add_argument("--seed", type=int, default=0, help="the shipped model is seed 0")
    options = parser.parse_args(argv)
    require_torch()
    from agentrl.models.tiny import WARM_START_STEPS, build_tiny_model

    console = Console()
    with Progress(console=console) as progress:
        bar = progress.add_task("warm start", total=WARM_START_STEPS)
        build_tiny_model(
            options.out_dir, seed=options.seed, progress=lambda step, steps, loss: progress.update(bar, completed=step)
        )
    console.print(f"model folder: {options.out_dir}", highlight=False)
    return 0
