"""Tree attention through transformers' attention interface: one forward over unique tokens, prefixes shared.

Shapes: U unique tokens in depth-first order, B = 1 batch, H query heads, G key heads, d head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from agentrl.errors import ConfigError

TREE_SDPA = "tree_sdpa"
MAX_TOKENS = 65_536
"""Unique tokens of a dense mask, whose memory grows with the square: 4 GiB here."""

UNSUPPORTED = {
    "softcap": "caps its attention logits",
    "s_aux": "has attention sinks",
    "position_bias": "adds a position bias to its attention logits",
}
"""Arguments of an attention call that change the scores, and what a model that passes them does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeMask:
    """Who sees whom. ``visible_UU[q, k]`` is True where token k is visible to token q; ``positions_U`` is the depth."""

    visible_UU: Tensor
    positions_U: Tensor

    @classmethod
    def of(cls, subtree_end_U: Tensor, positions_U: Tensor) -> TreeMask:
        """k is visible to q iff ``k <= q < subtree_end_U[k]``. Raises ``ConfigError`` beyond ``MAX_TOKENS``."""
        if len(subtree_end_U) > MAX_TOKENS:
            raise ConfigError(
                f"{TREE_SDPA} holds a dense mask, at most {MAX_TOKENS} unique tokens wide; a micro-batch has "
                f"{len(subtree_end_U)}: lower it (if single paths are longer, lower --max_tokens too)",
                setting="--max_tokens_per_microbatch",
            )
        index_U = torch.arange(len(subtree_end_U), device=subtree_end_U.device)
        query_U1 = index_U[:, None]
        return cls(visible_UU=(index_U <= query_U1) & (query_U1 < subtree_end_U), positions_U=positions_U)

    def within(self, window: int | None) -> Tensor:
        """The mask cut to a sliding window of depths: k is at most ``window - 1`` steps above q."""
        if window is None:
            return self.visible_UU
        return self.visible_UU & (self.positions_U[:, None] - self.positions_U < window)


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
    """Scaled dot-product attention under a dense tree mask; returns [B, U, H, d].

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
    attended_BHUd = torch.nn.functional.scaled_dot_product_attention(
        query_BHUd,
        key_BGUd.repeat_interleave(groups, dim=1),
        value_BGUd.repeat_interleave(groups, dim=1),
        attn_mask=tree_mask.within(sliding_window),
        scale=scaling,
    )
    return attended_BHUd.transpose(1, 2).contiguous(), None


def register() -> None:
    """Make ``attn_implementation="tree_sdpa"`` known. No mask function: transformers then builds no mask of its own."""
    AttentionInterface.register(TREE_SDPA, tree_sdpa)
