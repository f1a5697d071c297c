"""Command lines in Hugging Face's syntax mean here what they mean to ``HfArgumentParser``, where both know them."""

import dataclasses
from collections.abc import Sequence
from typing import Any, get_type_hints

import pytest
from transformers import HfArgumentParser

from agentrl.config.parser import parse_groups
from agentrl.config.run import GROUPS


def known_to_both(group: type) -> Any:
    """The group without what Hugging Face's parser does not take: mappings, and our metadata."""
    hints = get_type_hints(group)
    fields = []
    for field in dataclasses.fields(group):
        if hints[field.name] == dict[str, Any]:
            continue
        metadata = {name: value for name, value in field.metadata.items() if name in ("help", "choices")}
        metadata["help"] = metadata["help"].replace("%", "%%")
        default: Any = dataclasses.field(default=field.default, metadata=metadata)
        if field.default is dataclasses.MISSING:
            default = dataclasses.field(default_factory=field.default_factory, metadata=metadata)
        fields.append((field.name, hints[field.name], default))
    return dataclasses.make_dataclass(group.__name__, fields, kw_only=True, frozen=True)


TWINS = tuple(known_to_both(group) for group in GROUPS)


def require_same(twins: Sequence[Any], words: list[str]) -> None:
    ours = parse_groups(twins, words, command="test")
    theirs = HfArgumentParser(twins, allow_abbrev=False).parse_args_into_dataclasses(words)
    assert [ours[twin] for twin in twins] == list(theirs), words


def words_of(field: dataclasses.Field[Any], kind: Any) -> list[list[str]]:
    """Command lines that set one option."""
    name = f"--{field.name}"
    if field.metadata.get("choices"):
        return [[name, choice] for choice in field.metadata["choices"]]
    if kind in (bool, bool | None):
        bare = [[name]] if kind is bool else []
        return [*bare, *([name, text] for text in ("true", "false", "True", "no", "1", "0", "y", "f"))]
    if kind == list[str]:
        return [[name, "a"], [name, "a b", "c"]]
    if kind is int:
        return [[name, "12"], [f"{name}=-1"], [name, "-1"]]
    if kind in (float, float | None):
        return [[name, "1e-4"], [f"{name}=3"], [name, "0.25"]]
    assert kind is str, kind
    return [[name, "some text"], [f"{name}=a=b"], [f"{name}="]]


SCRIPTS = [
    "--run_name first --model_name_or_path Qwen/Qwen3-4B --train_file data/train.jsonl --num_generations 8 "
    "--max_new_tokens 8196 --max_turns 100 --max_prompt_tokens 131072 --tool_call_parser auto --target_concurrency 32",
    "--loss_calculater MINIRL --token_level_loss false --skip_length_normalization --epsilon 0.2 --epsilon_higher 0.1 "
    "--importance_weight_cap_ratio 4.0 --strict_in_bound --adv_scaling 1 --drop_zero_advantage false",
    "--learning-rate 2e-6 --weight-decay 0.01 --lr_scheduler_type cosine --warmup_ratio 0.03 --max-steps -1 --seed 7 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 48 --max_grad_norm 1.0 --adam_beta2 0.95",
    "--mcp_manager_url http://localhost:9876 builtin:calculator --mcp_server_name web python --gradient_checkpointing "
    "--save_steps 10 --save_total_limit 2 --logging_steps 1 --resume_from_checkpoint auto --trust_remote_code true",
]


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.__name__)
def test_every_option_means_the_same_to_both_parsers(twin: Any) -> None:
    require_same([twin], [])
    for field in dataclasses.fields(twin):
        for words in words_of(field, get_type_hints(twin)[field.name]):
            require_same([twin], words)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_means_the_same_to_both_parsers(script: str) -> None:
    require_same(TWINS, script.split())
