"""``TreeScorer``: the one call that touches every parameter of a policy: trees in, log-probs of predictions out.

Sharded parameters are gathered around the call of the module they belong to, so model and head are called as one.
Shapes: U unique tokens of packed trees, D width, V vocabulary, T predictions.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.models.attention import TreeMask
from agentrl.models.logprobs import token_logprobs


class TreeScorer(nn.Module):
    """``model`` under tree attention; a head without bias is expected."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def lm_head_VD(self) -> Tensor:
        return self.model.get_output_embeddings().weight  # pyright: ignore[reportReturnType, reportAttributeAccessIssue, reportOptionalMemberAccess]

    def forward(
        self,
        token_ids_U: Tensor,
        positions_U: Tensor,
        subtree_end_U: Tensor,
        source_T: Tensor,
        targets_T: Tensor,
        temperature_T: Tensor,
        chunk: int | None = None,
        with_entropy: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """See ``token_logprobs``; prediction t reads the hidden state at ``source_T[t]``."""
        hidden_UD = self.hidden(token_ids_U, positions_U, subtree_end_U)
        hidden_TD = hidden_UD[source_T]  # the tree unfolds here, and only here
        return token_logprobs(
            hidden_TD, self.lm_head_VD, targets_T, temperature_T, chunk=chunk, with_entropy=with_entropy
        )

    def hidden(self, token_ids_U: Tensor, positions_U: Tensor, subtree_end_U: Tensor) -> Tensor:
        """Hidden states [U, D] after the final norm; token k is seen by q iff ``k <= q < subtree_end_U[k]``."""
        decoder: Any = self.model.base_model
        output = decoder(
            input_ids=token_ids_U[None],
            position_ids=positions_U[None],
            tree_mask=TreeMask.of(subtree_end_U, positions_U),
            use_cache=False,
        )
        return output.last_hidden_state[0]
