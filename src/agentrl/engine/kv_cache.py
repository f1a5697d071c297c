"""KV cache of the slot decoder: one row a sequence, all rows in one tensor a layer, grown as sequences get longer.

Shapes: N rows of a forward, L new tokens a row, S tokens read, H key heads, d head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

Rows = slice | Tensor
"""Rows of one forward: a slice is read as a view, an index tensor is gathered."""

FIRST_CAPACITY = 256


class SlotCache(Cache):
    """``num_rows`` sequences side by side. ``begin`` says which rows and positions the next forward writes."""

    def __init__(self, num_rows: int) -> None:
        super().__init__(layers=[])
        self._num_rows = num_rows
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self.capacity = FIRST_CAPACITY
        self._rows: Rows = slice(0, 0)
        self._index_N1 = torch.empty(0)
        self._positions_NL = torch.empty(0)
        self._num_read = 0

    def begin(self, rows: Rows, index_N: Tensor, positions_NL: Tensor, *, num_read: int) -> None:
        """The next forward writes ``positions_NL`` of ``rows`` and reads the first ``num_read`` tokens of each."""
        self._rows, self._index_N1 = rows, index_N[:, None]
        self._positions_NL, self._num_read = positions_NL, num_read

    def reserve(self, num_tokens: int) -> None:
        """Make room for rows of ``num_tokens``."""
        while self.capacity < num_tokens:
            self.capacity *= 2
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                if old.shape[2] < self.capacity:
                    grown = old.new_zeros(old.shape[0], old.shape[1], self.capacity, old.shape[3])
                    grown[:, :, : old.shape[2]] = old
                    tensors[layer] = grown

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Write [N, H, L, d] of one layer and return [N, H, S, d] to attend to."""
        if layer_idx == len(self._keys):
            for tensors, new in ((self._keys, key_states), (self._values, value_states)):
                tensors.append(new.new_zeros(self._num_rows, new.shape[1], self.capacity, new.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._index_N1, :, self._positions_NL] = key_states.transpose(1, 2)
        values[self._index_N1, :, self._positions_NL] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._num_read], values[self._rows, :, : self._num_read]

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        for tensor in (*self._keys, *self._values):
            tensor[target, :, :num_tokens] = tensor[source, :, :num_tokens]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._num_read
