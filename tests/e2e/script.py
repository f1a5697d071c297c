"""What the scripted engine says in end-to-end tests: a function of the question and the slot, nothing else."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Sequence
from functools import cache

from transformers import PreTrainedTokenizerFast

from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.types import Sampling


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(str(TINY_MODEL_DIR))


def reply(prompt_ids: Sequence[int], session: str, sampling: Sampling) -> list[int]:
    """Half of the slots call the calculator and answer with its result, the others guess."""
    prompt = tokenizer().decode(list(prompt_ids))
    question = re.findall(r"What is (.+?)\?", prompt)[-1]
    slot = session.split("/")[-2]
    result = re.findall(r"<tool_response>\s*(\S+)\s*</tool_response>", prompt)
    if result:
        text = f"<answer>{result[-1]}</answer>"
    elif hashlib.sha256(f"{question}/{slot}".encode()).digest()[0] % 2:
        text = f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{question}"}}}}\n</tool_call>'
    else:
        text = "<answer>0</answer>"
    return tokenizer().encode(text + "<|im_end|>", add_special_tokens=False)


def slow_reply(prompt_ids: Sequence[int], session: str, sampling: Sampling) -> list[int]:
    """One reply after the other, each after a moment: episodes last long enough to be seen in progress."""
    time.sleep(0.03)
    return reply(prompt_ids, session, sampling)
