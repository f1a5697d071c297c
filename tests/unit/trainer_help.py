"""Two-layer models in folders, random turn trees as rows, and the gradients of a plan."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    Gemma2Config,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

from agentrl.algo import build_loss
from agentrl.batch.micro import MicroBatch
from agentrl.batch.plan import plan_step
from agentrl.batch.rows import build_row
from agentrl.config import AlgoOptions, ModelOptions, OptimOptions
from agentrl.engine.base import Canary
from agentrl.models.load import Policy, load_policy
from agentrl.telemetry import Metrics
from agentrl.trainer.step import forward_backward
from agentrl.types import DBRecordData, DispatchedSamplingTask, Sampling, VersionSpan
from agentrl.weights.base import Publication
from agentrl.weights.scripted import ScriptedPublisher

VOCABULARY = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": 0,
    "initializer_range": 0.05,
}
EXPERTS: dict[str, Any] = {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR: dict[str, Any] = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
CONFIGS = {
    "qwen2": lambda **more: Qwen2Config(**SMALL | more),
    "qwen3": lambda **more: Qwen3Config(**SMALL | {"head_dim": 8} | more),
    "llama": lambda **more: LlamaConfig(**SMALL | more),
    "mistral": lambda **more: MistralConfig(**SMALL | {"sliding_window": 5} | more),
    "qwen3_moe": lambda **more: Qwen3MoeConfig(**SMALL | EXPERTS | more),
    "qwen3_next": lambda **more: Qwen3NextConfig(**SMALL | EXPERTS | LINEAR | more),
    "gemma2": lambda **more: Gemma2Config(**SMALL | {"head_dim": 8} | more),
    "cohere": lambda **more: CohereConfig(**SMALL | {"pad_token_id": 0} | more),
    "opt": lambda **more: OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, **more
    ),
}


def write_model(folder: Path, family: str = "qwen3", *, tied: bool = True, seed: int = 0, **more: Any) -> Path:
    torch.manual_seed(seed)
    config = CONFIGS[family](tie_word_embeddings=tied, **more)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    vocabulary = {f"t{index}": index for index in range(VOCABULARY)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="t1")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def model(folder: Path, family: str = "qwen3", *, tied: bool = True, **options: Any) -> Policy:
    return load_policy(write_model(folder, family, tied=tied), ModelOptions(**{"device": "cpu"} | options))


def ids(rng: random.Random, low: int, high: int) -> tuple[int, ...]:
    return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high)))


def random_rows(seed: int, *, groups: int = 2, siblings: int = 3, turns: int = 4) -> list[DBRecordData]:
    """Siblings share a prompt; turns extend the last turn, an earlier one, or start again."""
    rng = random.Random(seed)
    rows = []
    for group in range(groups):
        prompt = ids(rng, 3, 8)
        for slot in range(siblings):
            record = f"run/train/0/task{group}/{slot}/0"
            played = [turn(rng, record, number, prompt) for number in range(rng.randint(1, turns))]
            advantages = [rng.uniform(-1.5, 1.5)] * len(played)
            rows.append(
                build_row(
                    task=f"run/train/0/task{group}",
                    seq=group,
                    slot=slot,
                    record=record,
                    turns=played,
                    turn_advantages=advantages,
                )
            )
    return rows


def turn(rng: random.Random, record: str, number: int, prompt: tuple[int, ...]) -> DispatchedSamplingTask:
    parent = None if number == 0 or rng.random() < 0.15 else rng.choice([number - 1, number - 1, rng.randrange(number)])
    sampled = ids(rng, 1, 6)
    return DispatchedSamplingTask(
        record=record,
        turn=number,
        parent=parent,
        prompt_ids_delta=prompt if parent is None else ids(rng, 1, 4),
        token_ids=sampled,
        logprobs=tuple(rng.uniform(-5.0, -3.0) for _ in sampled),
        version_spans=(VersionSpan(start=0, end=len(sampled), version=0),),
        sampling=Sampling(max_new_tokens=8, temperature=rng.choice([1.0, 0.7])),
        finish_reason="stop",
    )


def plan(
    rows: Sequence[DBRecordData],
    *,
    sharing: Literal["tree", "turns", "none"] = "tree",
    budget: int = 10_000,
    algo: AlgoOptions | None = None,
) -> tuple[MicroBatch, ...]:
    planned = plan_step(
        rows,
        options=algo or AlgoOptions(),
        optim=OptimOptions(max_tokens=1000),
        step_of_version=lambda version: version,
        step=0,
        max_tokens_per_microbatch=budget,
        prefix_sharing=sharing,
    )
    return planned.microbatches


def gradients(policy: Policy, microbatches: Sequence[MicroBatch]) -> tuple[Metrics, dict[str, torch.Tensor]]:
    policy.model.zero_grad(set_to_none=True)
    metrics = forward_backward(policy, build_loss(AlgoOptions()), microbatches, version=0, chunk=7)
    grads = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    return metrics, grads


def relative(seen: torch.Tensor, expected: torch.Tensor) -> float:
    return float((seen - expected).norm() / expected.norm())


class KeepingPublisher(ScriptedPublisher):
    """Keeps a copy of the weights of each version too."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, dict[str, torch.Tensor]] = {}

    def publish(self, tensors: Mapping[str, torch.Tensor], *, version: int, canary: Canary | None) -> Publication:
        self.weights[version] = {name: tensor.clone() for name, tensor in tensors.items()}
        return ScriptedPublisher.publish(self, tensors, version=version, canary=canary)
