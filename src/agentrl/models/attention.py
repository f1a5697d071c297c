"""Tree attention through transformers' attention interface: one forward over unique tokens, prefixes shared.

A dense mask over all unique tokens would pay for every pair of unrelated branches. The tree is cut into blocks instead:
a run of queries, and the keys they can see, which are the chains above them and themselves.

Shapes: U unique tokens in depth-first order, Q queries and K keys of a block, B = 1 batch, H query heads, G key heads,
d head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface

from agentrl.errors import ConfigError

TREE_SDPA = "tree_sdpa"
BLOCK_TOKENS = 256
"""Subtrees up to this size are masked as a whole: cutting them would cost more calls than it saves pairs."""
MAX_MASK = 2**31
"""Elements of one block's mask: 8 GiB in float32."""

UNSUPPORTED = {
    "softcap": "caps its attention logits",
    "s_aux": "has attention sinks",
    "position_bias": "adds a position bias to its attention logits",
}
"""Arguments of an attention call that change the scores, and what a model that passes them does."""

Span = tuple[int, int]
"""Tokens ``start <= i < end``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The tokens of ``queries`` see tokens of ``above`` (chains that lead to them) and of their own span only."""

    queries: Span
    above: tuple[Span, ...] = ()
    is_chain: bool = False

    @property
    def keys(self) -> tuple[Span, ...]:
        return (*self.above, self.queries)


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """Who sees whom: k is visible to q iff ``k <= q < subtree_end_U[k]``; ``positions_U`` is the depth.

    ``masks`` are made when a layer first asks for them, one per block and window, and shared by all layers.
    """

    subtree_end_U: Tensor
    positions_U: Tensor
    blocks: tuple[Block, ...]
    masks: dict[Any, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, subtree_end_U: Tensor, positions_U: Tensor) -> TreeMask:
        blocks = tuple(cut(subtree_end_U.cpu().numpy()))
        return cls(subtree_end_U=subtree_end_U, positions_U=positions_U, blocks=blocks)

    def bias(self, block: Block, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Added to the scores [Q, K] of ``block``; None where a causal mask is the same. A ``window`` counts depth:
        k is visible up to ``window - 1`` steps below it."""
        if block.is_chain and not block.above and window is None:
            return None
        key = (block.queries, window, dtype)
        if key not in self.masks:
            visible_QK = self.visible(block, window)
            self.masks[key] = torch.zeros_like(visible_QK, dtype=dtype).masked_fill_(~visible_QK, -torch.inf)
        return self.masks[key]

    def visible(self, block: Block, window: int | None) -> Tensor:
        num_keys = sum(end - start for start, end in block.keys)
        if (block.queries[1] - block.queries[0]) * num_keys > MAX_MASK:
            raise ConfigError(
                f"a path of {num_keys} tokens needs a mask beyond {MAX_MASK} elements in {TREE_SDPA}: train shorter "
                "paths",
                setting="--max_tokens",
            )
        device = self.subtree_end_U.device
        keys_K = torch.cat([torch.arange(start, end, device=device) for start, end in block.keys])
        queries_Q1 = torch.arange(*block.queries, device=device)[:, None]
        visible_QK = (keys_K <= queries_Q1) & (queries_Q1 < self.subtree_end_U[keys_K])
        if window is None:
            return visible_QK
        return visible_QK & (self.positions_U[queries_Q1] - self.positions_U[keys_K] < window)


def cut(subtree_end_U: NDArray[np.int64]) -> Iterator[Block]:
    """Blocks of a forest in order of their queries; each token is the query of exactly one.

    Small neighbouring subtrees make one block. A larger one gives its chain down to the first branch point, then what
    branches off below that chain.
    """
    ends = subtree_end_U
    chain_ends = np.flatnonzero(np.append(ends[1:] != ends[:-1], True)) + 1
    forests: list[tuple[Span, tuple[Span, ...]]] = [((0, len(ends)), ())]
    while forests:
        (start, stop), above = forests.pop()
        if start == stop:
            continue
        end = int(ends[start])
        chain_end = int(chain_ends[np.searchsorted(chain_ends, start, side="right")])
        if end - start <= BLOCK_TOKENS:
            end = end_of_run(ends, start, stop)
            yield Block(queries=(start, end), above=above, is_chain=chain_end == end)
            forests.append(((end, stop), above))
        else:
            yield Block(queries=(start, chain_end), above=above, is_chain=True)
            forests += [((end, stop), above), ((chain_end, end), (*above, (start, chain_end)))]


def end_of_run(ends: NDArray[np.int64], start: int, stop: int) -> int:
    """End of the subtrees from ``start`` on that fit into one block together; at least one."""
    end = int(ends[start])
    while end < stop and ends[end] - start <= BLOCK_TOKENS:
        end = int(ends[end])
    return end


def tree_sdpa(
    module: torch.nn.Module,
    query_BHUd: Tensor,
    key_BGUd: Tensor,
    value_BGUd: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    sliding_window: int | None = None,
    tree_mask: TreeMask | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention, block by block; returns [B, U, H, d].

    Without ``tree_mask`` this would be attention in both directions, silently wrong, so it raises. Dropout is ignored:
    the engine samples without it, so the trainer scores without it. Raises ``ConfigError`` for a model whose attention
    is more than this.
    """
    if tree_mask is None:
        raise ConfigError(
            f"{type(module).__name__} calls its attention without a tree mask: it does not hand on forward keywords, "
            "so this model cannot be trained here",
            setting="--model_name_or_path",
        )
    assert attention_mask is None, "the tree mask is the only mask"
    for name, what in UNSUPPORTED.items():
        if others.get(name) is not None:
            raise ConfigError(
                f"{type(module).__name__} {what}, which {TREE_SDPA} does not apply", setting="--model_name_or_path"
            )
    groups = query_BHUd.shape[1] // key_BGUd.shape[1]
    key_BHUd = key_BGUd.repeat_interleave(groups, dim=1)
    value_BHUd = value_BGUd.repeat_interleave(groups, dim=1)
    attended: list[Tensor] = []
    for block in tree_mask.blocks:
        bias_QK = tree_mask.bias(block, sliding_window, query_BHUd.dtype)
        attended.append(
            torch.nn.functional.scaled_dot_product_attention(
                tokens(query_BHUd, (block.queries,)),
                tokens(key_BHUd, block.keys),
                tokens(value_BHUd, block.keys),
                attn_mask=bias_QK,
                is_causal=bias_QK is None,
                scale=scaling,
            )
        )
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def tokens(states_BHUd: Tensor, spans: tuple[Span, ...]) -> Tensor:
    """The tokens of ``spans``; cut and joined, because a gather's gradient is summed in no fixed order on a GPU."""
    parts = [states_BHUd[:, :, start:end] for start, end in spans]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)


def register() -> None:
    """Make ``attn_implementation="tree_sdpa"`` known. No mask function: transformers then builds no mask of its own."""
    AttentionInterface.register(TREE_SDPA, tree_sdpa)
