"""Writes the data of the SmolLM2 example: dialogues to learn the tool calls from, tasks to train on, tasks held out.

    python examples/smollm2/make_data.py

Everything is drawn here; tool results are what the built-in servers answer. Numbers are divided by a hash, so that
dialogues, training tasks and held-out tasks never share a pair; most kinds of question of the tasks are in no dialogue.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentdock.searching.bm25 import Index
from agentdock.searching.corpus import load_corpus
from agentdock.servers.arithmetic import evaluate
from agentdock.servers.calculator import TOOL as CALCULATOR
from agentdock.servers.lookup import DEFAULT_CORPUS, lookup_tool
from agentrl.tasks.prompts import answer_instruction

HERE = Path(__file__).parent
SEED = 0
NUM_SUMS, NUM_TRAIN, NUM_HELD_OUT = 400, 512, 48
PARTS = ("dialogues", "dialogues", "train", "train", "heldout")
NAMES = ("Anna", "Ben", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana", "Ivan", "Jun")
THINGS = ("pencils", "apples", "stamps", "cards", "marbles", "tickets", "shells", "books", "coins", "bottles")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of question: its text, and the expression that answers it. ``a`` > ``b`` > ``c``."""

    text: str
    expression: str


TAUGHT = (
    Kind("What is {a} + {b}?", "{a} + {b}"),
    Kind("What is {a} * {b}?", "{a} * {b}"),
    Kind("How much is {a} minus {b}?", "{a} - {b}"),
    Kind("{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?", "{a} + {b}"),
    Kind("{name} has {a} {things} and gives {b} away. How many {things} are left?", "{a} - {b}"),
    Kind("There are {a} boxes with {b} {things} each. How many {things} are there?", "{a} * {b}"),
    Kind("What is ({a} + {b}) * {c}?", "({a} + {b}) * {c}"),
    Kind(
        "{name} buys {a} {things} for {b} dollars each and a bag for {c} dollars. What is the price?", "{a} * {b} + {c}"
    ),
)
NEW = (
    Kind("What is {a} * {b} - {c}?", "{a} * {b} - {c}"),
    Kind("Each of {a} children brings {b} {things}. How many {things} do they bring together?", "{a} * {b}"),
    Kind("{name} counts {a} {things}, then {b}, then {c}. How many is that in total?", "{a} + {b} + {c}"),
    Kind("A shop has {a} {things}. It sells {b} and buys {c}. How many {things} has it now?", "{a} - {b} + {c}"),
    Kind("A row has {a} seats. How many seats are in {b} rows?", "{a} * {b}"),
    Kind("{name} packs {a} bags with {b} {things} each and loses {c}. How many {things} are left?", "{a} * {b} - {c}"),
)
FACTS = (
    ("How many days does Mercury need for one orbit around the Sun?", "Mercury orbit Sun days", "Mercury", "88"),
    ("Who discovered the moons Phobos and Deimos?", "Phobos Deimos discovered", "Mars", "Asaph Hall"),
    ("Which planet is the largest?", "largest planet", "Jupiter", "Jupiter"),
    ("What is the largest moon of Saturn?", "largest moon of Saturn", "Saturn", "Titan"),
    ("Who discovered Titan?", "Titan discovered by", "Titan", "Christiaan Huygens"),
    ("What is the chemical symbol of iron?", "iron chemical symbol", "Iron", "Fe"),
    ("What is the atomic number of silver?", "silver atomic number", "Silver", "47"),
    ("What is the chemical symbol of gold?", "gold chemical symbol", "Gold", "Au"),
    ("Which metal has the highest melting point?", "highest melting point metal", "Tungsten", "Tungsten"),
    ("At which city do the White Nile and the Blue Nile meet?", "White Nile Blue Nile meet", "Nile", "Khartoum"),
    ("Into which sea does the Danube flow?", "Danube flows into sea", "Danube", "Black Sea"),
    ("Which river is the longest in Asia?", "longest river in Asia", "Yangtze", "Yangtze"),
)
"""Question, words to look up, title of the document that answers, answer."""


def part_of(a: int, b: int) -> str:
    return PARTS[hashlib.sha256(f"{min(a, b)},{max(a, b)}".encode()).digest()[0] % len(PARTS)]


def questions(part: str, kinds: tuple[Kind, ...], rng: random.Random) -> Iterator[tuple[str, str]]:
    """Question and expression, without end; the numbers belong to ``part``."""
    while True:
        c, b, a = sorted(rng.sample(range(3, 100), 3))
        if part_of(a, b) != part:
            continue
        kind = rng.choice(kinds)
        values = {"a": a, "b": b, "c": c, "name": rng.choice(NAMES), "things": rng.choice(THINGS)}
        yield kind.text.format(**values), kind.expression.format(**values)


def drawn(part: str, kinds: tuple[Kind, ...], count: int) -> list[tuple[str, str]]:
    """``count`` different questions."""
    found: dict[str, str] = {}
    for question, expression in questions(part, kinds, random.Random(f"{part},{SEED}")):
        found.setdefault(question, expression)
        if len(found) == count:
            break
    return list(found.items())


def as_openai(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def dialogue(question: str, tool: Any, arguments: dict[str, Any], result: str, answer: str) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": tool.name, "arguments": arguments}}
    return {
        "messages": [
            {"role": "system", "content": answer_instruction("answer")},
            {"role": "user", "content": question},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": result},
            {"role": "assistant", "content": f"<answer>{answer}</answer>"},
        ],
        "tools": [as_openai(tool)],
    }


def sum_dialogues() -> list[dict[str, Any]]:
    return [
        dialogue(question, CALCULATOR, {"expression": expression}, evaluate(expression), evaluate(expression))
        for question, expression in drawn("dialogues", TAUGHT, NUM_SUMS)
    ]


def lookup_dialogues() -> list[dict[str, Any]]:
    index = Index(load_corpus(DEFAULT_CORPUS))
    tool = lookup_tool(index)
    found = []
    for question, words, title, answer in FACTS:
        hits = index.search(words, 1)
        assert hits[0].title == title, f"{words!r} finds {hits[0].title}"
        assert answer in f"{hits[0].title} {hits[0].text}", f"{title} does not say {answer}"
        text = f"[1] {hits[0].title}: {hits[0].text}"
        found.append(dialogue(question, tool, {"query": words, "limit": 1}, text, answer))
    return found


def task(name: str, number: int, question: str, expression: str) -> dict[str, Any]:
    return {
        "id": f"{name}-{number:04d}",
        "query": question,
        "answer": evaluate(expression),
        "scorer": "math",
        "answer_schema": "answer",
        "tools": ["calculator"],
    }


def tasks(name: str, count: int) -> list[dict[str, Any]]:
    return [task(name, number, *pair) for number, pair in enumerate(drawn(name, (*TAUGHT, *NEW), count))]


def write(name: str, rows: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (HERE / name).write_text(text, encoding="utf-8")


FILES: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "dialogues.jsonl": lambda: [*sum_dialogues(), *lookup_dialogues()],
    "train.jsonl": lambda: tasks("train", NUM_TRAIN),
    "heldout.jsonl": lambda: tasks("heldout", NUM_HELD_OUT),
}

if __name__ == "__main__":
    for file_name, rows_of in FILES.items():
        write(file_name, rows_of())
