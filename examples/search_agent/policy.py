"""A policy without a model: search with the question, read the first hit, answer with the sentence that fits best.

It is what `eval.yaml` plays, as `--engine_script policy:reply`. It cannot take a second step, so it is a lower bound
for a model that can.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedTokenizerFast

from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.types import Sampling

STEM = 5
"""Letters of a word that are compared: "invent" and "invented" are then the same."""


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(TINY_MODEL_DIR))


def reply(prompt_ids: Sequence[int], session: str, sampling: Sampling) -> list[int]:
    """The next reply, as token ids: a call of `search`, a call of `fetch_url`, or the answer."""
    prompt = tokenizer().decode(list(prompt_ids))
    question = re.findall(r"<\|im_start\|>user\n(.+?)<\|im_end\|>", prompt, re.DOTALL)[0].splitlines()[-1]
    results = re.findall(r"<tool_response>\s*(.*?)\s*</tool_response>", prompt, re.DOTALL)
    return tokenizer().encode(next_step(question, results) + "<|im_end|>", add_special_tokens=False)


def next_step(question: str, results: Sequence[str]) -> str:
    if not results:
        return call("search", query=[question], num=3)
    if len(results) == 1:
        urls = re.findall(r"^\s+(https?://\S+)$", results[0], re.MULTILINE)
        return call("fetch_url", url=urls[:1], purpose=question) if urls else "<answer>unknown</answer>"
    return f"<answer>{best_sentence(question, results[1])}</answer>"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def best_sentence(question: str, page: str) -> str:
    wanted = stems(question)
    sentences = [sentence for line in page.splitlines() for sentence in re.split(r"(?<=[.!?])\s+", line)]
    return max((sentence for sentence in sentences if sentence.endswith(".")), key=lambda s: len(wanted & stems(s)))


def stems(text: str) -> set[str]:
    return {word[:STEM] for word in re.findall(r"\w+", text.lower())}
