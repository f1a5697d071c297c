"""A Hugging Face causal LM over a pool of key-value rows: what the slot decoder computes with.

Shapes: N rows of one pass, Q new tokens per row, L tokens of context, H key-value heads, E width of a head,
V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel

from agentrl.engine.base import Canary
from agentrl.engine.weights import exchange
from agentrl.errors import ConfigError, WeightsError

FIRST_CAPACITY = 256
PREFILL_CHUNK = 2048
"""Columns of one forward pass: bounds the attention mask of a long prompt."""
CANARY_DECODED = 4
"""The last tokens of a canary go through one-token steps, the others through prefill."""
PROBE_TOLERANCE = 1e-3
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")
SETTING = "--engine slots"


class SlotCache(Cache):
    """Key-value memory [layers, rows, H, capacity, E]; a pass sees the rows ``first .. first + N`` of it.

    The last column is a bin: padding is written there and no mask ever shows it.
    """

    def __init__(self, *, num_layers: int, num_rows: int) -> None:
        super().__init__(layers=[])
        self.capacity = FIRST_CAPACITY
        self._num_layers = num_layers
        self._num_rows = num_rows
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._first = 0
        self._length = 0
        self._rows_N1 = torch.zeros(0)
        self._columns_NQ = torch.zeros(0)

    def reserve(self, length: int) -> None:
        """Make room for ``length`` tokens and the bin."""
        if length < self.capacity:
            return
        while self.capacity <= length:
            self.capacity *= 2
        if self._keys is not None and self._values is not None:
            self._keys = widened(self._keys, self.capacity)
            self._values = widened(self._values, self.capacity)

    def aim(self, first: int, columns_NQ: Tensor, length: int) -> None:
        """The next pass is over N rows from ``first``; its tokens go to ``columns_NQ`` and see ``length`` columns."""
        self._first = first
        self._length = length
        self._columns_NQ = columns_NQ
        self._rows_N1 = torch.arange(columns_NQ.shape[0], device=columns_NQ.device)[:, None]

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self._keys is None or self._values is None:
            self._keys, self._values = self._empty(key_states), self._empty(value_states)
        return self._store(self._keys[layer_idx], key_states), self._store(self._values[layer_idx], value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def copy_prefix(self, source: int, target: int, length: int) -> None:
        for pool in (self._keys, self._values):
            if pool is not None and length:
                pool[:, target, :, :length] = pool[:, source, :, :length]

    def swap(self, one: int, other: int, length: int) -> None:
        for pool in (self._keys, self._values):
            if pool is not None and length:
                kept = pool[:, one, :, :length].clone()
                pool[:, one, :, :length] = pool[:, other, :, :length]
                pool[:, other, :, :length] = kept

    def _empty(self, like: Tensor) -> Tensor:
        _, heads, _, width = like.shape
        return like.new_zeros(self._num_layers, self._num_rows, heads, self.capacity, width)

    def _store(self, rows: Tensor, new_NHQE: Tensor) -> Tensor:
        window = rows[self._first : self._first + new_NHQE.shape[0]]
        window.transpose(1, 2)[self._rows_N1, self._columns_NQ] = new_NHQE.transpose(1, 2)
        return window[:, :, : self._length]


def widened(pool: Tensor, capacity: int) -> Tensor:
    wider = pool.new_zeros(*pool.shape[:3], capacity, pool.shape[-1])
    wider[:, :, :, : pool.shape[3]] = pool
    return wider


class SlotModel:
    """Forward passes over ``num_slots`` rows, plus one row for canaries. Not thread-safe."""

    def __init__(self, model: PreTrainedModel, *, num_slots: int, max_context: int = 0) -> None:
        self.model = model.eval().requires_grad_(False)
        self.device = model.device
        config = model.config.get_text_config()
        self.vocabulary_size = int(config.vocab_size)
        self.max_context = context_of(config, max_context)
        self.num_slots = num_slots
        require_full_attention(config, self.max_context)
        self.cache = SlotCache(num_layers=config.num_hidden_layers, num_rows=num_slots + 1)
        parameters = inspect.signature(model.forward).parameters
        # transformers renamed the argument within the versions that are allowed.
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        try:
            # Masks are given as booleans, which the eager path of transformers would add to its scores.
            model.set_attn_implementation("sdpa")
            require_exact(self)
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{type(model).__name__} does not run in the slot engine: {error}", setting=SETTING
            ) from error

    @torch.inference_mode()
    def forward(
        self, first: int, new_ids: Sequence[Sequence[int]], starts: Sequence[int], *, every_position: bool = False
    ) -> Tensor:
        """Extend rows ``first ..`` by ``new_ids`` after their first ``starts`` tokens; the logits [N, V] that follow.

        Rows are padded on the left, so that the last column is everyone's last token. ``every_position`` returns
        [N, Q, V] instead.
        """
        width = max(map(len, new_ids))
        length = max(start + len(ids) for start, ids in zip(starts, new_ids, strict=True))
        self.cache.reserve(length)
        if width == 1:
            ids_NQ = torch.tensor(new_ids, device=self.device)
            positions_NQ = columns_NQ = torch.tensor(starts, device=self.device)[:, None]
        else:
            ids_NQ, positions_NQ, columns_NQ = self._padded(new_ids, starts, width)
        logits: list[Tensor] = []
        for begin in range(0, width, PREFILL_CHUNK):
            part = slice(begin, begin + PREFILL_CHUNK)
            keep = 0 if every_position else 1
            logits.append(self._pass(first, ids_NQ[:, part], positions_NQ[:, part], columns_NQ[:, part], length, keep))
        return torch.cat(logits, dim=1) if every_position else logits[-1][:, -1]

    def _padded(self, new_ids: Sequence[Sequence[int]], starts: Sequence[int], width: int) -> tuple[Tensor, ...]:
        bin_column = self.cache.capacity - 1
        ids, positions, columns = [], [], []
        for row, start in zip(new_ids, starts, strict=True):
            padding = width - len(row)
            places = list(range(start, start + len(row)))
            ids.append([0] * padding + list(row))
            positions.append([0] * padding + places)
            columns.append([bin_column] * padding + places)
        return tuple(torch.tensor(values, device=self.device) for values in (ids, positions, columns))

    def _pass(
        self, first: int, ids_NQ: Tensor, positions_NQ: Tensor, columns_NQ: Tensor, length: int, keep: int
    ) -> Tensor:
        self.cache.aim(first, columns_NQ, length)
        seen_N1QL = torch.arange(length, device=self.device) <= positions_NQ[:, None, :, None]
        arguments: dict[str, Any] = {self._cache_argument: self.cache}
        output = self.model(
            input_ids=ids_NQ,
            position_ids=positions_NQ,
            attention_mask=seen_N1QL,
            use_cache=True,
            logits_to_keep=keep,
            **arguments,
        )
        return output.logits

    @torch.inference_mode()
    def logprobs(self, token_ids: Sequence[int]) -> Tensor:
        """Log-probs [n-1] of tokens 1..n-1 at temperature 1, by the passes that serve: prefill, then single steps."""
        row = self.num_slots
        stepwise = min(CANARY_DECODED, len(token_ids) - 2)
        head = len(token_ids) - 1 - max(0, stepwise)
        logits = [self.forward(row, [token_ids[:head]], [0], every_position=True)[0]]
        logits += [self.forward(row, [[token_ids[at]]], [at]) for at in range(head, len(token_ids) - 1)]
        targets = torch.tensor(token_ids[1:], device=self.device)
        return torch.cat(logits).float().log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]

    def adopt(self, fresh: Mapping[str, Tensor], canary: Canary | None, *, where: str) -> float | None:
        """Take ``fresh`` weights; with a bad canary put the old ones back and raise. Return the difference seen."""
        previous = exchange(self.model, fresh)
        if canary is None:
            return None
        try:
            return self._difference(canary, where)
        except BaseException:
            exchange(self.model, previous)
            raise

    def _difference(self, canary: Canary, where: str) -> float:
        if not 2 <= len(canary.token_ids) <= self.max_context:
            raise WeightsError(f"{where}: a canary of {len(canary.token_ids)} tokens, 2 to {self.max_context} expected")
        if len(canary.logprobs) != len(canary.token_ids) - 1:
            raise WeightsError(
                f"{where}: the canary has {len(canary.logprobs)} log-probs for {len(canary.token_ids)} tokens, "
                f"{len(canary.token_ids) - 1} expected"
            )
        if not 0 <= min(canary.token_ids) <= max(canary.token_ids) < self.vocabulary_size:
            raise WeightsError(f"{where}: the canary has token ids outside the vocabulary of {self.vocabulary_size}")
        expected = torch.tensor(canary.logprobs, device=self.device)
        difference = float((self.logprobs(canary.token_ids) - expected).abs().max())
        if not difference <= canary.tolerance:
            raise WeightsError(
                f"{where}: the canary's log-probs differ by {difference:.2e} from the trainer's, more than the "
                f"tolerance {canary.tolerance:g}; the weights before stay in force"
            )
        return difference


def context_of(config: Any, max_context: int) -> int:
    limit = int(getattr(config, "max_position_embeddings", 0) or 0)
    if max_context <= 0 and limit <= 0:
        raise ConfigError("the model states no context length: give one", setting="--max_context")
    return min(number for number in (limit, max_context) if number > 0)


def require_full_attention(config: Any, max_context: int) -> None:
    """One key-value row per sequence fits plain attention only, and positions must not depend on the batch."""
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None)
    if kinds - {"full_attention", "sliding_attention"}:
        raise ConfigError(f"layers of kind {', '.join(sorted(kinds))}: full attention is expected", setting=SETTING)
    slides = "sliding_attention" in kinds or (window and not getattr(config, "layer_types", None))
    if slides and window and window < max_context and getattr(config, "use_sliding_window", True):
        raise ConfigError(
            f"the model's attention slides over {window} tokens, the context is {max_context}: give at most {window}",
            setting="--max_context",
        )
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type") in BATCH_DEPENDENT_ROPE:
        raise ConfigError(f"rope of type {rope['rope_type']} changes with the length of the batch", setting=SETTING)


@torch.inference_mode()
def require_exact(slots: SlotModel) -> None:
    """Two padded prompts and the stepwise path against a plain forward pass: refuses what our cache cannot serve."""
    ids = [(7 * index + 3) % slots.vocabulary_size for index in range(12)]
    plain = slots.model(input_ids=torch.tensor([ids], device=slots.device), use_cache=False).logits[0].float()
    last = slots.forward(0, [ids[:5], ids[:9]], [0, 0]) if slots.num_slots > 1 else slots.forward(0, [ids[:9]], [0])
    expected = plain[[4, 8]] if slots.num_slots > 1 else plain[[8]]
    targets = torch.tensor(ids[1:], device=slots.device)
    stepwise = plain[:-1].log_softmax(dim=-1).gather(1, targets[:, None])[:, 0]
    scale = expected.abs().max().clamp(min=1.0)
    difference = max(
        float((last.float() - expected).abs().max() / scale), float((slots.logprobs(ids) - stepwise).abs().max())
    )
    # Half precision rounds differently by batch shape.
    tolerance = PROBE_TOLERANCE if slots.model.dtype == torch.float32 else 100 * PROBE_TOLERANCE
    if not difference <= tolerance:
        raise ConfigError(
            f"{type(slots.model).__name__} does not decode exactly in the slot engine (off by {difference:.1e}): "
            "serve it with another engine",
            setting=SETTING,
        )
