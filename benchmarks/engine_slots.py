"""Tokens/s of the slot engine against padded ``generate`` with log-probs: 64 sessions of mixed length, one thread.

    python benchmarks/engine_slots.py [MODEL] [--device cuda] [--sessions 64] [--over-http]

Both sides sample the same number of tokens for every prompt. Eight siblings share each prompt, as in a GRPO group. The
ideal is a batch that is always full: the same number of decode steps at the pace of a full batch, no prefill.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from agentrl.engine import Engine
from agentrl.engine.client import EngineClient
from agentrl.engine.server import serve
from agentrl.engine.slot_model import SlotModel
from agentrl.engine.slots import SlotEngine
from agentrl.types import Sampling

SIBLINGS = 8
REPEATS = 3


def random_model(folder: str) -> str:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def workload(sessions: int, vocabulary: int) -> tuple[list[list[int]], list[int]]:
    """Prompts of 60 to 240 tokens and log-normal lengths from 8 to 256 (median 64)."""
    rng = random.Random(0)
    groups = [
        [rng.randrange(4, vocabulary) for _ in range(rng.randrange(60, 240))] for _ in range(-(-sessions // SIBLINGS))
    ]
    lengths = [min(256, max(8, round(rng.lognormvariate(4.16, 0.6)))) for _ in range(sessions)]
    return [groups[index // SIBLINGS] for index in range(sessions)], lengths


async def play(engine: Engine, prompts: list[list[int]], lengths: list[int], salt: str) -> None:
    requests = [
        engine.generate(
            prompt,
            sampling=Sampling(max_new_tokens=length, seed=index),
            session=f"{salt}-{index}",
            deadline_seconds=600,
        )
        for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True))
    ]
    done = await asyncio.gather(*requests)
    assert [len(one.token_ids) for one in done] == lengths


@torch.inference_mode()
def padded(model: Any, prompts: list[list[int]], lengths: list[int]) -> None:
    """One left-padded ``generate`` to the longest length; the log-probs of the sampled tokens from its logits."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    output = model.generate(
        ids,
        attention_mask=mask,
        do_sample=True,
        top_k=0,
        max_new_tokens=max(lengths),
        min_new_tokens=max(lengths),
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    for step, logits in enumerate(output.logits):
        logits.float().log_softmax(-1).gather(1, output.sequences[:, width + step, None])


def full_batch_steps(slots: SlotModel, prompts: list[list[int]], lengths: list[int]) -> float:
    """Tokens/s of plain forward passes of a full batch at the mean context length, with nothing around them."""
    context = round(sum(map(len, prompts)) / len(prompts) + sum(lengths) / len(lengths) / 2)
    rows = len(prompts)
    slots.forward(0, [[5]] * rows, [context] * rows)
    began = time.perf_counter()
    for _ in range(50):
        slots.forward(0, [[5]] * rows, [context] * rows)[0, 0].item()
    return rows * 50 / (time.perf_counter() - began)


def best_seconds(action: Callable[[int], None]) -> float:
    seconds = []
    for index in range(REPEATS + 1):
        began = time.perf_counter()
        action(index)
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--over-http", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or random_model(folder)
        plain = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, arguments.dtype)).to(arguments.device)
        # A sampled end token would shorten one side only.
        plain.generation_config.eos_token_id = None
        report(plain, arguments, Path(path).name)


def report(plain: Any, arguments: argparse.Namespace, name: str) -> None:
    prompts, lengths = workload(arguments.sessions, plain.config.vocab_size)
    tokens = sum(lengths)
    ideal = full_batch_steps(SlotModel(plain, num_slots=arguments.sessions), prompts, lengths)
    engine = SlotEngine(plain, num_slots=arguments.sessions, version=0)
    with asyncio.Runner() as runner:
        ours = best_seconds(lambda index: runner.run(play(engine, renewed(prompts, index), lengths, f"run{index}")))
        over_http = (
            best_seconds(lambda index: runner.run(through_http(engine, renewed(prompts, index + 9), lengths, index)))
            if arguments.over_http
            else 0.0
        )
        runner.run(engine.close())
    theirs = best_seconds(lambda _: padded(plain, prompts, lengths))
    print(
        f"model {name}, {arguments.sessions} sessions, {tokens} tokens, {arguments.device}, 1 thread, best of {REPEATS}"
    )
    print(f"slots                       {tokens / ours:10,.0f} tokens/s")
    if over_http:
        print(f"slots over HTTP             {tokens / over_http:10,.0f} tokens/s")
    print(f"padded generate + log-probs {tokens / theirs:10,.0f} tokens/s")
    print(f"ratio                       {theirs / ours:10.2f}  (goal 1.2)")
    print(f"ideal (full batch, nothing around it) {ideal:,.0f} tokens/s: slots reach {tokens / ours / ideal:.0%} of it")


def renewed(prompts: list[list[int]], index: int) -> list[list[int]]:
    """Other first tokens, so that no run finds the prefixes of the run before."""
    return [[4 + index, *prompt[1:]] for prompt in prompts]


async def through_http(engine: Engine, prompts: list[list[int]], lengths: list[int], index: int) -> None:
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(engine, model_name="m", on_ready=url.set_result, stop=stop))
    client = EngineClient(await url)
    try:
        await play(client, prompts, lengths, f"http{index}")
    finally:
        await client.close()
        stop.set()
        await serving


if __name__ == "__main__":
    main()
