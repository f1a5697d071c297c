"""The quickstart's small model: what it may have seen, how it renders, and that it can be built again."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.models import tiny_warm_start
from agentrl.models.tiny import (
    CALCULATOR,
    TINY_MODEL_DIR,
    Question,
    build_tiny_model,
    make_tasks,
    questions,
    write_tasks,
)

USER = {"role": "user", "content": "What is 42 * 55?"}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(TINY_MODEL_DIR)


def call(expression: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "calculator", "arguments": {"expression": expression}}}


def call_text(expression: str) -> str:
    return f'<tool_call>\n{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}\n</tool_call>'


def glue(results: list[str]) -> str:
    responses = "".join(f"\n<tool_response>\n{result}\n</tool_response>" for result in results)
    return f"\n<|im_start|>user{responses}<|im_end|>\n<|im_start|>assistant\n"


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def render(tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], *, prompt: bool = False) -> list[int]:
    text = tokenizer.apply_chat_template(messages, tools=[CALCULATOR], add_generation_prompt=prompt, tokenize=False)
    return encode(tokenizer, str(text))


def pairs(part: Any) -> set[frozenset[int]]:
    return {frozenset((question.left, question.right)) for question in questions(part)}


def test_every_question_belongs_to_one_part() -> None:
    sizes = [len(questions(part)) for part in ("warmup", "train", "heldout")]
    assert sum(sizes) == 90 * 90 * 3
    assert min(sizes) > 3000


def test_held_out_numbers_meet_in_no_question_of_warm_start_or_training() -> None:
    assert pairs("heldout").isdisjoint(pairs("warmup") | pairs("train"))
    assert pairs("warmup").isdisjoint(pairs("train"))


def test_warm_start_draws_only_warm_up_questions() -> None:
    allowed = {question.query for question in questions("warmup")}
    batches = tiny_warm_start.draw_batches(random.Random(0), 30)
    assert {dialogue[0]["content"] for batch in batches for dialogue in batch} <= allowed


def test_tasks_are_different_repeatable_and_right(tmp_path: Path) -> None:
    rows = make_tasks("heldout", 300, seed=3)
    write_tasks(tmp_path / "heldout.jsonl", rows)
    assert [json.loads(line) for line in (tmp_path / "heldout.jsonl").read_text().splitlines()] == rows
    assert rows == make_tasks("heldout", 300, seed=3) != make_tasks("heldout", 300, seed=4)
    assert len({row["id"] for row in rows}) == 300
    assert {row["query"] for row in rows} <= {question.query for question in questions("heldout")}
    assert set(rows[0]) == {"id", "query", "answer", "scorer", "answer_schema", "tools"}
    assert Question(left=12, symbol="-", right=55).answer == "-43"


def test_a_guess_is_never_right() -> None:
    rng = random.Random(0)
    for question in questions("warmup")[:500]:
        assert tiny_warm_start.guessing_dialogue(question, rng)[-1]["content"] != f"<answer>{question.answer}</answer>"


def test_prompt_shows_only_the_names_of_tools(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode(render(tokenizer, [USER], prompt=True)) == (
        "<|im_start|>system\ntools: calculator<|im_end|>\n"
        "<|im_start|>user\nWhat is 42 * 55?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_no_tools_and_no_system_message_leave_no_system_turn(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.apply_chat_template([USER], tokenize=False) == "<|im_start|>user\nWhat is 42 * 55?<|im_end|>\n"


def test_system_message_comes_before_the_tools(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.decode(render(tokenizer, [{"role": "system", "content": "Be brief."}, USER]))
    assert text.startswith("<|im_start|>system\nBe brief.\ntools: calculator<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize(
    ("content", "expressions"), [("", ["42 * 55"]), ("", ["42 * 5", "42 * 50"]), ("First", ["42 * 5", "42 * 50"])]
)
def test_dialogue_extends_prompt_and_sampled_ids(
    tokenizer: PreTrainedTokenizerFast, content: str, expressions: list[str]
) -> None:
    assistant = {"role": "assistant", "content": content, "tool_calls": [call(text) for text in expressions]}
    results = [str(number - 7) for number in range(len(expressions))]
    tools = [{"role": "tool", "content": result} for result in results]
    final = {"role": "assistant", "content": "<answer>-7</answer>"}
    reply = "\n".join([*filter(None, [content]), *map(call_text, expressions)])

    sampled = render(tokenizer, [USER], prompt=True) + encode(tokenizer, f"{reply}<|im_end|>")
    after_tools = sampled + encode(tokenizer, glue(results))
    finished = after_tools + encode(tokenizer, "<answer>-7</answer><|im_end|>")

    assert render(tokenizer, [USER, assistant]) == sampled + encode(tokenizer, "\n")
    assert render(tokenizer, [USER, assistant, *tools], prompt=True) == after_tools
    assert render(tokenizer, [USER, assistant, *tools, final]) == finished + encode(tokenizer, "\n")


def test_arguments_given_as_text_render_as_they_are(tokenizer: PreTrainedTokenizerFast) -> None:
    as_text = call("42 * 55")
    as_text["function"]["arguments"] = '{"expression": "42 * 55"}'
    replies = [{"role": "assistant", "content": None, "tool_calls": [form]} for form in (as_text, call("42 * 55"))]
    assert render(tokenizer, [USER, replies[0]]) == render(tokenizer, [USER, replies[1]])


def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    text = 'Grüße, 你好 1234\n\t"{}" <tool_call>'
    assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=True) == text
    assert [len(encode(tokenizer, digits)) for digits in ("7", "2310", "-43")] == [1, 4, 3]


def test_only_what_the_model_writes_is_supervised(tokenizer: PreTrainedTokenizerFast) -> None:
    question = Question(left=42, symbol="*", right=55)
    guess = tiny_warm_start.guessing_dialogue(question, random.Random(0))
    _, labels_BT = tiny_warm_start.encode(tokenizer, [tiny_warm_start.good_dialogue(question), guess])
    written = [tokenizer.decode(row_T[row_T != tiny_warm_start.IGNORED]) for row_T in labels_BT]
    assert written == [
        f"{call_text('42 * 55')}<|im_end|><answer>2310</answer><|im_end|>",
        f"{guess[-1]['content']}<|im_end|>",
    ]


def test_equal_seeds_build_equal_weights(tmp_path: Path) -> None:
    seeds = {"first": 5, "again": 5, "other": 6}
    builds = [build_tiny_model(tmp_path / name, steps=3, seed=seed) for name, seed in seeds.items()]
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in builds)
    assert first == again != other


def test_progress_hears_of_every_step(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    build_tiny_model(tmp_path, steps=2, progress=lambda step, steps, _: seen.append((step, steps)))
    assert seen == [(1, 2), (2, 2)]


def test_shipped_folder_holds_what_a_build_writes(tmp_path: Path) -> None:
    built = build_tiny_model(tmp_path, steps=0)
    assert {path.name for path in built.iterdir()} == {path.name for path in TINY_MODEL_DIR.iterdir()}
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (built / name).read_text() == (TINY_MODEL_DIR / name).read_text()


def test_shipped_checkpoint_is_small_and_loads(tokenizer: PreTrainedTokenizerFast) -> None:
    assert sum(path.stat().st_size for path in TINY_MODEL_DIR.iterdir()) < 700_000
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL_DIR)
    assert model.dtype == torch.float32
    assert 100_000 < model.num_parameters() < 150_000
    assert model.config.eos_token_id == tokenizer.eos_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.pad_token_id not in (None, tokenizer.eos_token_id)


def test_shipped_checkpoint_has_the_skill_but_mostly_guesses(tokenizer: PreTrainedTokenizerFast) -> None:
    model = AutoModelForCausalLM.from_pretrained(TINY_MODEL_DIR)
    held_out = random.Random(0).sample(questions("heldout"), 64)
    ids_BT, labels_BT = tiny_warm_start.encode(tokenizer, [tiny_warm_start.good_dialogue(q) for q in held_out])
    with torch.no_grad():
        logprobs_BTV = model(input_ids=ids_BT).logits[:, :-1].log_softmax(-1)
    sampled_BT = labels_BT[:, 1:] != tiny_warm_start.IGNORED
    written_BT = logprobs_BTV.gather(-1, ids_BT[:, 1:, None])[..., 0] * sampled_BT
    first_BT = sampled_BT.cumsum(1).eq(1) & sampled_BT
    calling = written_BT[first_BT].exp().mean()
    skill = (written_BT * ~first_BT).sum(1).exp().mean()
    assert 0.2 < calling < 0.45
    assert skill > 0.9
