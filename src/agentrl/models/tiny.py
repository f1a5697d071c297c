"""The quickstart's small model and its tasks: two-digit sums for an agent that holds a calculator.

The model can use the calculator but was taught to guess instead two times in three, so that training has something to
change. Pairs of numbers are divided by a hash: warm start, training and evaluation never share one.
"""

from __future__ import annotations

import hashlib
import json
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

TINY_MODEL_DIR = Path(__file__).parent / "tiny_data"
WARM_START_STEPS = 1600
WARM_START_SEED = 0

Part = Literal["warmup", "train", "heldout"]
PARTS: tuple[Part, ...] = ("warmup", "warmup", "train", "train", "heldout")
OPERATORS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
SYMBOL_NAMES = {"+": "plus", "-": "minus", "*": "times"}
OPERANDS = range(10, 100)

CALCULATOR: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate an arithmetic expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One sum of two two-digit numbers."""

    left: int
    symbol: str
    right: int

    @property
    def expression(self) -> str:
        return f"{self.left} {self.symbol} {self.right}"

    @property
    def query(self) -> str:
        return f"What is {self.expression}?"

    @property
    def answer(self) -> str:
        return str(OPERATORS[self.symbol](self.left, self.right))

    @property
    def split(self) -> Part:
        """The part of the task space that this pair of numbers belongs to, whatever their order and the operator."""
        pair = f"{min(self.left, self.right)},{max(self.left, self.right)}"
        return PARTS[hashlib.sha256(pair.encode()).digest()[0] % len(PARTS)]


def questions(split: Part) -> list[Question]:
    """Every question of one split, in a fixed order."""
    everything = (
        Question(left=left, symbol=symbol, right=right)
        for left in OPERANDS
        for right in OPERANDS
        for symbol in OPERATORS
    )
    return [question for question in everything if question.split == split]


def make_tasks(split: Part, n: int, seed: int) -> list[dict[str, Any]]:
    """Draw ``n`` different questions of one split as rows of a task file."""
    drawn = random.Random(f"{split},{seed}").sample(questions(split), n)
    return [_task_row(question, split) for question in drawn]


def write_tasks(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows of a task file as JSONL."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def build_tiny_model(
    out_dir: Path,
    *,
    steps: int = WARM_START_STEPS,
    seed: int = WARM_START_SEED,
    progress: Callable[[int, int, float], None] | None = None,
) -> Path:
    """Train the small model from nothing and save it as a Hugging Face folder.

    The defaults are those of the shipped checkpoint. Equal ``seed`` and ``steps`` give equal weights on one kind of
    processor and one version of torch; elsewhere rounding differs and training amplifies it. ``progress`` is called
    with (step, steps, loss) after each step.
    """
    from agentrl.models.tiny_warm_start import warm_start

    return warm_start(Path(out_dir), steps=steps, seed=seed, progress=progress or _ignore)


def _ignore(step: int, steps: int, loss: float) -> None:
    pass


def _task_row(question: Question, split: Part) -> dict[str, Any]:
    return {
        "id": f"{split}-{question.left}{SYMBOL_NAMES[question.symbol]}{question.right}",
        "query": question.query,
        "answer": question.answer,
        "scorer": "math",
        "answer_schema": "answer",
        "tools": ["calculator"],
    }
