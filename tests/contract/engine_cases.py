"""Engines under one contract: scripted, embedded, and both behind real HTTP; and servers on threads for publishers."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from agentrl.engine import Canary, Engine, WeightSource
from agentrl.engine.client import EngineClient
from agentrl.engine.scripted import Faults, ScriptedEngine
from agentrl.engine.server import serve
from agentrl.types import Sampling

VOCABULARY = 64
MAX_CONTEXT = 256
PROMPT = [5, 9, 2, 33, 7]
HAS_SLOTS = importlib.util.find_spec("agentrl.engine.slots") is not None
KINDS = ("scripted", "http_scripted", "slots", "http_slots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``source(seed, error)``: weights that follow from ``seed``, and a canary that is off by ``error``."""

    engine: Engine
    source: Callable[[int, float], WeightSource]


def count_up(prompt_ids: Sequence[int], session: str, sampling: Sampling) -> list[int]:
    return [(sum(prompt_ids) + i) % VOCABULARY for i in range(MAX_CONTEXT)]


def scripted_case(folder: Path, version: int | None) -> Case:
    engine = ScriptedEngine(
        count_up,
        version=version,
        max_context=MAX_CONTEXT,
        check_canary=True,
        faults=Faults(seconds_per_token=0.002),
    )

    def source(seed: int, error: float) -> WeightSource:
        logprobs = tuple([-1.0 + error] * (len(PROMPT) - 1))
        return WeightSource(path=str(folder), canary=Canary(token_ids=tuple(PROMPT), logprobs=logprobs, tolerance=1e-4))

    return Case(engine=engine, source=source)


def slots_case(folder: Path, version: int | None) -> Case:
    from agentrl.engine.slots import SlotEngine
    from agentrl.engine.weights import save_weights

    def source(seed: int, error: float) -> WeightSource:
        import torch

        model = random_model(seed)
        ids = torch.tensor([PROMPT])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        seen = logprobs.gather(1, ids[0, 1:, None])[:, 0] + error
        save_weights(folder / f"seed{seed}", model.state_dict())
        canary = Canary(token_ids=tuple(PROMPT), logprobs=tuple(seen.tolist()), tolerance=1e-4)
        return WeightSource(path=str(folder / f"seed{seed}"), canary=canary)

    return Case(engine=SlotEngine(random_model(0), num_slots=8, version=version), source=source)


def random_model(seed: int):
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=MAX_CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(config)


@asynccontextmanager
async def opened(kind: str, folder: Path, *, version: int | None = 0) -> AsyncIterator[Case]:
    if kind.endswith("slots") and not HAS_SLOTS:
        pytest.skip("the embedded engine is not there")
    case = slots_case(folder, version) if kind.endswith("slots") else scripted_case(folder, version)
    try:
        if not kind.startswith("http"):
            yield case
            return
        async with served(case.engine) as url:
            client = EngineClient(url)
            try:
                yield Case(engine=client, source=case.source)
            finally:
                await client.close()
    finally:
        await case.engine.close()


@asynccontextmanager
async def served(engine: Engine, **options) -> AsyncIterator[str]:
    """The URL of ``engine`` behind ``serve`` in this loop."""
    stop, url = asyncio.Event(), asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(engine, model_name="m", on_ready=url.set_result, stop=stop, grace_seconds=0.2, **options)
    )
    try:
        await asyncio.wait({task, url}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield url.result()
    finally:
        stop.set()
        await task


@contextmanager
def served_on_thread(engine_of: Callable[[], Engine]) -> Iterator[tuple[str, Engine]]:
    """URL and engine behind a real server on a thread of its own, for callers that block."""
    ready, made, found = threading.Event(), [], []

    async def main() -> None:
        stop = asyncio.Event()

        def on_ready(url: str) -> None:
            found.append((url, asyncio.get_running_loop(), stop))
            ready.set()

        made.append(engine_of())
        await serve(made[0], model_name="m", on_ready=on_ready, stop=stop, grace_seconds=0.2)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(10), "the server did not start"
    url, loop, stop = found[0]
    try:
        yield url, made[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        assert not thread.is_alive()


async def until(holds: Callable[[], Awaitable[bool]], *, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not await holds():
            await asyncio.sleep(0.005)
