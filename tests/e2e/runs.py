"""Whole runs in processes of their own, for end-to-end tests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentrl.models.tiny import TINY_MODEL_DIR, make_tasks
from agentrl.store import open_store

HERE = Path(__file__).resolve().parent

SCRIPTED = {
    "engine": "scripted",
    "engine_script": "script:reply",
    "mcp_manager_url": "builtin:calculator",
    "default_prompt": "false",
    "num_generations": "4",
    "groups_per_step": "2",
    "max_turns": "3",
    "max_new_tokens": "64",
    "max_tokens": "320",
    "max_tokens_per_microbatch": "2048",
    "learning_rate": "1e-4",
    "sync_sampling": "true",
    "target_concurrency": "16",
    "save_steps": "2",
    "wait_timeout": "60",
}


@dataclass(slots=True)
class Run:
    """``agentrl run`` of ``name`` below ``folder``."""

    folder: Path
    name: str
    process: subprocess.Popen[str] | None = None

    @property
    def output(self) -> Path:
        return self.folder / "output" / self.name

    def start(self, options: dict[str, str], *flags: str) -> Run:
        arguments = [f"--{name}={value}" for name, value in options.items()]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentrl", "run", f"--run_name={self.name}", *arguments, *flags],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(HERE)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        return self

    def end(self, *, timeout: float = 120.0) -> tuple[int, str]:
        """Exit code and everything it printed; a run that does not end is killed and is an error."""
        assert self.process is not None
        try:
            printed, _ = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            time.sleep(1)
            self.process.kill()
            raise AssertionError(f"{self.name} did not end within {timeout} s:\n{self.logs()}") from None
        return self.process.returncode, printed

    def wait_until(self, condition: Callable[[], Any], what: str, *, timeout: float = 90.0) -> Any:
        assert self.process is not None
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if found := condition():
                return found
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended before {what}:\n{self.process.communicate()[0]}\n{self.logs()}")
            time.sleep(0.05)
        raise AssertionError(f"{what} did not come within {timeout} s:\n{self.logs()}")

    def steps(self) -> list[dict[str, Any]]:
        path = self.output / "metrics.jsonl"
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [event for line in lines if (event := json.loads(line))["kind"] == "step"]

    def wait_for_step(self, step: int) -> None:
        self.wait_until(lambda: any(event["step"] >= step for event in self.steps()), f"step {step}")

    def pid_of(self, kind: str) -> int:
        """Process id of a live worker, as the store knows it."""

        def found() -> int | None:
            workers = [w for w in self.ask(lambda store: store.workers()) if w.kind == kind and w.alive]
            return workers[-1].pid if workers else None

        return self.wait_until(found, f"a live {kind}")

    def ask(self, question: Callable[[Any], Any]) -> Any:
        """An answer of the run's store."""

        async def asked() -> Any:
            store = open_store(f"sqlite:///{self.output / 'run.db'}", run=self.name)
            await store.open()
            try:
                return await question(store)
            finally:
                await store.close()

        return asyncio.run(asked())

    def logs(self) -> str:
        texts = []
        for path in sorted((self.output / "logs").glob("*.log")):
            with suppress(OSError):
                texts.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(texts)


def write_tasks(folder: Path, *, num_train: int = 24, num_held_out: int = 4) -> dict[str, str]:
    """Task files of the small model's world, and the options that name them and the model."""
    options = {"model_name_or_path": str(TINY_MODEL_DIR)}
    for option, split, count in (("train_file", "train", num_train), ("eval_file", "heldout", num_held_out)):
        path = folder / f"{split}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in make_tasks(split, count, seed=0)))
        options[option] = str(path)
    return options


def flags_of(options: dict[str, str]) -> Sequence[str]:
    return [f"--{name}={value}" for name, value in options.items()]
