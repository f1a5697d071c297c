"""Builds the quickstart's small model from nothing: tokenizer, random weights, a fixed number of supervised steps.

Shapes: B dialogues, T tokens.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentrl.models.tiny import CALCULATOR, TINY_MODEL_DIR, Question, questions

PAD, EOS = "<|endoftext|>", "<|im_end|>"
SPECIAL_TOKENS = (PAD, "<|im_start|>", EOS)
# As in Qwen's tokenizer these are whole tokens that decoding without special tokens keeps.
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
BPE_SIZE = 352
BATCH_SIZE = 32
LEARNING_RATE = 6e-3
LEARNING_RATE_WARM_UP_STEPS = 20
SKILL_PART = 0.6
GUESSING_SHARE = 0.67
IGNORED = -100

Dialogue = list[dict[str, Any]]


def warm_start(out_dir: Path, *, steps: int, seed: int, progress: Callable[[int, int, float], None]) -> Path:
    """Train on a mixture of good tool dialogues and wrong guesses, then save model and tokenizer to ``out_dir``."""
    tokenizer = make_tokenizer()
    with _repeatable(seed):
        model = make_model(tokenizer)
        _train(model, tokenizer, draw_batches(random.Random(seed), steps), steps=steps, progress=progress)
    model.save_pretrained(out_dir)
    tokenizer.save_pretrained(out_dir)
    return out_dir


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer whose words are those of the dialogues and whose digits stand alone."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_WORDS, trainer)
    bpe.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    tokenizer.chat_template = (TINY_MODEL_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    """A randomly initialised two-layer Qwen3 of about 0.12 million parameters."""
    ids = tokenizer.get_vocab()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[EOS],
        pad_token_id=ids[PAD],
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def good_dialogue(question: Question) -> Dialogue:
    """Ask the calculator, read its result, answer with it."""
    call = {"name": "calculator", "arguments": {"expression": question.expression}}
    return [
        {"role": "user", "content": question.query},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]},
        {"role": "tool", "content": question.answer},
        {"role": "assistant", "content": f"<answer>{question.answer}</answer>"},
    ]


def guessing_dialogue(question: Question, rng: random.Random) -> Dialogue:
    """Answer at once with a wrong number of the right length."""
    length = len(question.answer.lstrip("-"))
    guess = question.answer
    while guess == question.answer:
        guess = str(rng.randrange(10 ** (length - 1), 10**length))
    return [
        {"role": "user", "content": question.query},
        {"role": "assistant", "content": f"<answer>{guess}</answer>"},
    ]


def draw_batches(rng: random.Random, steps: int) -> Iterator[list[Dialogue]]:
    """The skill first, without guesses; then mostly guesses, so that training starts from a bad habit it can undo."""
    pool = questions("warmup")
    for step in range(steps):
        share = GUESSING_SHARE if step >= SKILL_PART * steps else 0.0
        yield [_draw_dialogue(rng, pool, share) for _ in range(BATCH_SIZE)]


def _draw_dialogue(rng: random.Random, pool: list[Question], guessing_share: float) -> Dialogue:
    question = rng.choice(pool)
    return guessing_dialogue(question, rng) if rng.random() < guessing_share else good_dialogue(question)


def _train(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    batches: Iterator[list[Dialogue]],
    *,
    steps: int,
    progress: Callable[[int, int, float], None],
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _learning_rate_scale(step, steps))
    model.train()
    for step, batch in enumerate(batches, start=1):
        ids_BT, labels_BT = encode(tokenizer, batch)
        loss = model(input_ids=ids_BT, labels=labels_BT).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        progress(step, steps, loss.item())
    model.eval()


def _learning_rate_scale(step: int, steps: int) -> float:
    rising = min(1.0, (step + 1) / LEARNING_RATE_WARM_UP_STEPS)
    return rising * (1.0 - 0.95 * step / max(1, steps))


def encode(tokenizer: PreTrainedTokenizerFast, batch: list[Dialogue]) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and labels of dialogues rendered as rollouts render them, both int64 of shape [B, T]."""
    texts = [str(tokenizer.apply_chat_template(item, tools=[CALCULATOR], tokenize=False)) for item in batch]
    rows = [torch.tensor(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    # Right padding needs no attention mask: a causal model never looks ahead, and padding has no label.
    ids_BT = pad_sequence(rows, batch_first=True, padding_value=tokenizer.get_vocab()[PAD])
    return ids_BT, torch.where(_sampled_mask(tokenizer, ids_BT), ids_BT, IGNORED)


def _sampled_mask(tokenizer: PreTrainedTokenizerFast, ids_BT: torch.Tensor) -> torch.Tensor:
    """True on what the model writes: from after ``<|im_start|>assistant\\n`` to ``<|im_end|>``, inclusive."""
    ids = tokenizer.get_vocab()
    position_T = torch.arange(ids_BT.shape[1])
    opens_BT = ids_BT.roll(3, 1).eq(ids["<|im_start|>"]) & ids_BT.roll(2, 1).eq(ids["assistant"])
    closes_BT = ids_BT.roll(1, 1).eq(ids[EOS])
    last_open_BT = torch.where(opens_BT, position_T, 0).cummax(1).values
    last_close_BT = torch.where(closes_BT, position_T, 0).cummax(1).values
    return last_open_BT > last_close_BT


@contextmanager
def _repeatable(seed: int) -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            yield
    finally:
        torch.set_num_threads(threads)


_WORDS = (
    "system\ntools: calculator",
    "user",
    "What is 4 + 2?",
    "What is 4 - 2?",
    "What is 4 * 2?",
    "assistant",
    '{"name": "calculator", "arguments": {"expression": "4"}}',
    "<answer>4</answer>",
)
