"""The slot decoder against plain forward passes: log-probs, prefixes, versions, sampling."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MptConfig,
    MptForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentrl.engine.base import Canary, RequestRefused, WeightSource
from agentrl.engine.sampling import SamplingPlan, sample
from agentrl.engine.slots import SlotEngine
from agentrl.engine.weights import save_weights
from agentrl.errors import ConfigError, EngineError, WeightsError
from agentrl.types import Completion, Sampling

VOCABULARY = 96
CONTEXT = 512


def small(config: type, **more: Any) -> Any:
    return config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        **more,
    )


def new_model(seed: int, *, tied: bool = False) -> PreTrainedModel:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(small(Qwen3Config, head_dim=8, tie_word_embeddings=tied)).eval()


@torch.no_grad()
def forward_logprobs(model: Any, token_ids: Sequence[int], *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probs of tokens 1..n-1 by one plain forward pass."""
    ids = torch.tensor([list(token_ids)])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1].float() / temperature
    return logits.log_softmax(dim=-1).gather(1, ids[0, 1:, None])[:, 0]


def source(folder: Path, seed: int, version: int, *, tied: bool = False, off_by: float = 0.0) -> WeightSource:
    """Weights of ``new_model(seed)`` in a folder, and their canary, whose log-probs are ``off_by``."""
    model, ids = new_model(seed, tied=tied), tuple((7919 * index + 13) % VOCABULARY for index in range(32))
    save_weights(folder / f"v{version}", model.state_dict())
    logprobs = tuple((forward_logprobs(model, ids) + off_by).tolist())
    canary = Canary(token_ids=ids, logprobs=logprobs, tolerance=1e-4)
    return WeightSource(path=str(folder / f"v{version}"), canary=canary)


class Gap:
    """Collects differences between an engine's log-probs and those of a plain forward pass."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []

    def add(self, model: Any, prompt: Sequence[int], done: Completion, temperature: float) -> None:
        expected = forward_logprobs(model, [*prompt, *done.token_ids], temperature=temperature)[len(prompt) - 1 :]
        self.seen.append((expected - torch.tensor(done.logprobs)).abs())

    def check(self, at_least: int) -> None:
        gaps = torch.cat(self.seen)
        assert len(gaps) >= at_least
        assert gaps.max() <= 1e-4
        assert gaps.quantile(0.99) <= 1e-5  # of so few tokens the 99.9th percentile is one or two of the widest


async def generate(engine: SlotEngine, prompt: Sequence[int], session: str, **values: Any) -> Completion:
    sampling = Sampling(**{"max_new_tokens": 20, "seed": 1, **values})
    return await engine.generate(prompt, sampling=sampling, session=session, deadline_seconds=20)


async def sampled(engine: SlotEngine, count: int) -> None:
    while (await engine.health()).generated_tokens < count:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("tied", [False, True])
def test_logprobs_equal_a_forward_pass_over_turns_siblings_and_mixed_lengths(tied: bool, tmp_path: Path) -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0, tied=tied), num_slots=16, version=0)
        rng, gap, reused = random.Random(5), Gap(), 0
        models = {0: new_model(0, tied=tied), 1: new_model(1, tied=tied)}
        prompts = [[rng.randrange(VOCABULARY) for _ in range(length)] for length in (1, 2, 17, 40, 89, 120)]
        contexts = {f"{group}-{sibling}": prompts[group] for group in range(6) for sibling in range(4)}
        for turn in range(4):
            if turn == 2:
                await engine.update_weights(1, source(tmp_path, 1, 1, tied=tied))
            temperatures = {session: rng.choice([0.6, 1.0, 1.4]) for session in contexts}
            done = await asyncio.gather(
                *(
                    generate(
                        engine,
                        prompt,
                        session,
                        temperature=temperatures[session],
                        max_new_tokens=rng.randrange(1, 40),
                        seed=rng.randrange(10**6),
                    )
                    for session, prompt in contexts.items()
                )
            )
            for (session, prompt), one in zip(contexts.items(), done, strict=True):
                (span,) = one.version_spans
                assert span.version == (turn >= 2)
                gap.add(models[span.version], prompt, one, temperatures[session])
                reused += one.cached_tokens
            contexts = {
                session: [*prompt, *one.token_ids, *(rng.randrange(VOCABULARY) for _ in range(rng.randrange(1, 20)))]
                for (session, prompt), one in zip(contexts.items(), done, strict=True)
            }
        gap.check(at_least=1000)
        assert reused > 2000
        await engine.close()

    asyncio.run(scene())


def test_siblings_prefill_their_prompt_once_and_a_second_turn_only_its_delta() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=8, version=0)
        computed: list[int] = []
        forward = engine._model.forward

        def counting(first, new_ids, starts, **options):
            computed.extend(len(ids) for ids in new_ids if len(ids) > 1)
            return forward(first, new_ids, starts, **options)

        engine._model.forward = counting
        prompt = list(range(3, 63))
        done = await asyncio.gather(*(generate(engine, prompt, f"s{i}", seed=i) for i in range(4)))
        assert computed == [60]
        assert [one.cached_tokens for one in done] == [0, 59, 59, 59]
        computed.clear()
        second = await generate(engine, [*prompt, *done[2].token_ids, 7, 8, 9], "s2")
        assert computed == [4]
        assert second.cached_tokens == 60 + 19
        await engine.close()

    asyncio.run(scene())


def test_a_request_says_how_long_it_waited_for_a_slot() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=1, version=0)
        first, second = await asyncio.gather(*(generate(engine, [3, 4, i], f"s{i}", max_new_tokens=30) for i in (5, 6)))
        assert first.queue_seconds < second.queue_seconds < second.latency_seconds
        assert second.queue_seconds > first.latency_seconds / 2
        await engine.close()

    asyncio.run(scene())


def test_prefixes_of_old_weights_never_leak(tmp_path: Path) -> None:
    """Neither those of idle sessions nor those of a request that was in flight, even for the same version number."""

    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=8, version=0)
        prompt, gap = list(range(3, 63)), Gap()
        await generate(engine, prompt, "idle")
        in_flight = asyncio.create_task(generate(engine, prompt, "flying", max_new_tokens=300))
        await sampled(engine, 40)
        await engine.update_weights(1, source(tmp_path, 1, 1))
        flown = await in_flight
        assert [span.version for span in flown.version_spans] == [0, 1]
        for session, context in (("idle", prompt), ("flying", [*prompt, *flown.token_ids, 5]), ("new", prompt)):
            done = await generate(engine, context, session)
            assert done.cached_tokens in (0, 60, 59)
            gap.add(new_model(1), context, done, 1.0)
        other = tmp_path / "again"
        save_weights(other, new_model(2).state_dict())
        await engine.update_weights(1, WeightSource(path=str(other)))
        done = await generate(engine, prompt, "new")
        assert done.cached_tokens == 0
        gap.add(new_model(2), prompt, done, 1.0)
        gap.check(at_least=80)
        await engine.close()

    asyncio.run(scene())


def test_the_span_of_old_weights_is_exact_when_they_change_in_flight(tmp_path: Path) -> None:
    """Up to the border the log-probs are those of the old weights; the token at the border is not."""

    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=4, version=0)
        prompt = [4, 5, 6, 7]
        in_flight = asyncio.create_task(generate(engine, prompt, "s", max_new_tokens=300))
        await sampled(engine, 40)
        await engine.update_weights(1, source(tmp_path, 1, 1))
        done = await in_flight
        border = done.version_spans[0].end
        old = forward_logprobs(new_model(0), [*prompt, *done.token_ids])[3:]
        gaps = (old - torch.tensor(done.logprobs)).abs()
        assert gaps[:border].max() <= 1e-4
        assert gaps[border] > 1e-2
        await engine.close()

    asyncio.run(scene())


def test_idle_sessions_leave_in_the_order_they_were_last_used() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=3, version=0)
        prompts = {name: [10 + index] * 30 for index, name in enumerate("abcd")}
        for name in "abcad":
            await generate(engine, prompts[name], name, max_new_tokens=2)
        cached = {name: (await generate(engine, prompts[name], name, max_new_tokens=2)).cached_tokens for name in "acd"}
        assert cached == {"a": 29, "c": 29, "d": 29}
        assert (await generate(engine, prompts["b"], "b", max_new_tokens=2)).cached_tokens == 0
        await engine.close()

    asyncio.run(scene())


def test_filtered_logprobs_are_those_of_the_distribution_sampled_from() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 50) * 2
    sampling = Sampling(max_new_tokens=1, temperature=0.8, top_k=10, top_p=0.7)
    plan = SamplingPlan.of([sampling], torch.device("cpu"))
    probabilities = (logits / 0.8).softmax(-1)[0].sort(descending=True)
    top = probabilities.values[:10] / probabilities.values[:10].sum()
    kept = int((top.cumsum(0) - top < 0.7).sum())
    expected = dict(
        zip(probabilities.indices[:kept].tolist(), (top[:kept] / top[:kept].sum()).log().tolist(), strict=True)
    )
    seen = {}
    for step in range(2000):
        (token,), (logprob,) = sample(logits, plan, [(step + 0.5) / 2000])
        seen[token] = logprob
    assert seen.keys() == expected.keys()
    assert all(seen[token] == pytest.approx(expected[token], abs=1e-5) for token in seen)


def test_tokens_are_drawn_as_often_as_their_probability_says() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 20)
    plan = SamplingPlan.of([Sampling(max_new_tokens=1, temperature=1.3)], torch.device("cpu"))
    draw = random.Random(0).random
    counts = torch.zeros(20)
    tokens, _ = sample(logits.expand(20_000, -1), plan, [draw() for _ in range(20_000)])
    counts.index_add_(0, torch.tensor(tokens), torch.ones(20_000))
    probabilities = (logits[0] / 1.3).softmax(-1)
    chi_square = ((counts - 20_000 * probabilities) ** 2 / (20_000 * probabilities)).sum()
    assert chi_square < 43.8  # 0.1% of 19 degrees of freedom


def test_greedy_rows_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [0.0, 3.0, 1.0]])
    plan = SamplingPlan.of([Sampling(max_new_tokens=1, temperature=0), Sampling(max_new_tokens=1)], torch.device("cpu"))
    tokens, logprobs = sample(logits, plan, [0.0, 0.0])
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(logits.log_softmax(-1)[0, [1, 0]].tolist())


def test_weights_that_are_not_finite_end_the_request_and_not_the_engine(tmp_path: Path) -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=4, version=0)
        broken = copy.deepcopy(new_model(0))
        with torch.no_grad():
            broken.get_output_embeddings().weight.fill_(float("nan"))
        save_weights(tmp_path / "nan", broken.state_dict())
        bad = source(tmp_path, 0, 0).canary
        with pytest.raises(WeightsError, match="canary"):
            await engine.update_weights(1, WeightSource(path=str(tmp_path / "nan"), canary=bad))
        await engine.update_weights(1, WeightSource(path=str(tmp_path / "nan")))
        with pytest.raises(EngineError, match="not finite"):
            await generate(engine, [4, 5], "s")
        await engine.update_weights(2, source(tmp_path, 1, 2))
        assert len((await generate(engine, [4, 5], "s")).token_ids) == 20
        await engine.close()

    asyncio.run(scene())


def test_a_decode_thread_that_dies_fails_every_request_and_says_so() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=2, version=0)

        def broken(*_: object, **__: object) -> torch.Tensor:
            raise RuntimeError("out of memory")

        engine._model.forward = broken
        results = await asyncio.gather(*(generate(engine, [4, 5], f"s{i}") for i in range(4)), return_exceptions=True)
        assert all(isinstance(result, EngineError) and "out of memory" in str(result) for result in results)
        health = await engine.health()
        assert health.detail.startswith("failed: ")
        assert not health.ready
        with pytest.raises(EngineError, match="out of memory"):
            await generate(engine, [4, 5], "later")
        await engine.close()

    asyncio.run(scene())


def test_an_engine_that_closes_fails_what_is_open() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=2, version=None)
        waiting = asyncio.create_task(generate(engine, [4, 5], "s"))
        await asyncio.sleep(0.02)
        await engine.close()
        with pytest.raises(EngineError, match="stopped"):
            await waiting

    asyncio.run(scene())


@pytest.mark.parametrize(
    "build", [(LlamaForCausalLM, LlamaConfig), (Qwen2ForCausalLM, Qwen2Config)], ids=lambda b: b[0].__name__
)
def test_other_families_decode_exactly_through_long_prompts_too(build: tuple[Any, Any], monkeypatch) -> None:
    monkeypatch.setattr("agentrl.engine.slot_model.PREFILL_CHUNK", 32)

    async def scene() -> None:
        model_class, config_class = build
        model = model_class(small(config_class)).eval()
        engine, gap = SlotEngine(model, num_slots=4, version=0), Gap()
        prompts = [[(3 * i + j * j) % VOCABULARY for i in range(20 + 110 * j)] for j in range(4)]
        done = await asyncio.gather(*(generate(engine, prompt, f"s{i}") for i, prompt in enumerate(prompts)))
        for prompt, one in zip(prompts, done, strict=True):
            gap.add(model, prompt, one, 1.0)
        gap.check(at_least=80)
        await engine.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: MistralForCausalLM(small(MistralConfig, sliding_window=64)), r"slides over 64 tokens"),
        (lambda: LlamaForCausalLM(small(LlamaConfig, rope_parameters=DYNAMIC)), "dynamic"),
        (
            lambda: MptForCausalLM(MptConfig(vocab_size=96, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)),
            "exactly",
        ),
        (lambda: BloomForCausalLM(BloomConfig(vocab_size=96, hidden_size=32, n_head=4, n_layer=2)), "does not run"),
    ],
    ids=["sliding window", "dynamic rope", "alibi", "its own cache"],
)
def test_a_model_whose_logprobs_would_be_wrong_is_refused_at_the_start(model: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        SlotEngine(model().eval(), num_slots=2, max_context=128)


DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}


def test_a_window_as_long_as_the_context_is_full_attention() -> None:
    async def scene() -> None:
        model = MistralForCausalLM(small(MistralConfig, sliding_window=64)).eval()
        engine, gap = SlotEngine(model, num_slots=2, max_context=64, version=0), Gap()
        gap.add(model, [5, 6, 7], await generate(engine, [5, 6, 7], "s", max_new_tokens=100), 1.0)
        gap.check(at_least=61)
        await engine.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("prompt", "sampling", "says"),
    [
        ([5, VOCABULARY], {}, f"token id {VOCABULARY}"),
        ([5, -1], {}, "token id -1"),
        ([], {}, "empty"),
        ([5], {"temperature": -1.0}, "temperature"),
        ([5], {"temperature": float("nan")}, "temperature"),
        ([5], {"top_p": 0.0}, "top_p"),
        ([5], {"top_k": -1}, "top_k"),
        ([5], {"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_a_wrong_request_is_refused_and_its_neighbours_go_on(prompt: list[int], sampling: dict, says: str) -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=4, version=0)
        neighbour = asyncio.create_task(generate(engine, [4, 5, 6], "n", max_new_tokens=100))
        await sampled(engine, 5)
        with pytest.raises(RequestRefused, match=says):
            await generate(engine, prompt, "s", **sampling)
        assert len((await neighbour).token_ids) == 100
        await engine.close()

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("canary", "says"),
    [
        (Canary(token_ids=(1, 2, 3), logprobs=(-1.0,), tolerance=0.1), "1 log-probs for 3 tokens"),
        (Canary(token_ids=(1, VOCABULARY), logprobs=(-1.0,), tolerance=0.1), "outside the vocabulary"),
        (Canary(token_ids=(1,), logprobs=(), tolerance=0.1), "canary of 1 tokens"),
        (Canary(token_ids=(1, 2), logprobs=(float("nan"),), tolerance=0.1), "differ by nan"),
    ],
)
def test_an_impossible_canary_is_refused_while_requests_go_on(canary: Canary, says: str, tmp_path: Path) -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=4, version=0)
        flying = asyncio.create_task(generate(engine, [4, 5, 6], "n", max_new_tokens=200))
        await sampled(engine, 5)
        path = source(tmp_path, 1, 1).path
        with pytest.raises(WeightsError, match=says):
            await engine.update_weights(1, WeightSource(path=path, canary=canary))
        done, gap = await flying, Gap()
        assert [(span.start, span.end, span.version) for span in done.version_spans] == [(0, 200, 0)]
        gap.add(new_model(0), [4, 5, 6], done, 1.0)
        gap.check(at_least=200)
        await engine.close()

    asyncio.run(scene())


def test_a_command_that_breaks_the_thread_is_answered() -> None:
    async def scene() -> None:
        engine = SlotEngine(new_model(0), num_slots=2, version=0)

        def broken() -> None:
            raise RuntimeError("out of memory")

        with pytest.raises(EngineError, match="out of memory"):
            await asyncio.wait_for(engine._command(broken), 5)
        with pytest.raises(EngineError, match="out of memory"):
            await engine.pause()
        await engine.close()

    asyncio.run(scene())
