"""The model side of the slot decoder: rows of KV, prefill, one decode step, log-probs of a canary.

Everything here runs on the decode thread. Shapes: N rows of a forward, L new tokens a row, S tokens read, D width.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.engine.draw import draw
from agentrl.engine.kv_cache import Rows, SlotCache
from agentrl.errors import ConfigError
from agentrl.types import Sampling

NO_VERSION = -1
PREFILL_TOKENS = 8192
PREFILL_CHUNK = 1024
REFUSED = {
    "final_logit_softcapping": "caps its logits",
    "logits_scaling": "scales its logits",
    "logit_scale": "scales its logits",
    "attn_logit_softcapping": "caps its attention logits",
}


class Decoder:
    """``num_rows`` sequences of one Hugging Face causal LM, and one spare row for the canary.

    ``ids``/``length`` say which tokens of a row have KV, ``version`` which weights computed all of it.
    """

    def __init__(self, model: Any, num_rows: int) -> None:
        refuse_unsupported(model.config)
        self.model = model.eval()
        self.num_rows = num_rows
        self.device = next(model.parameters()).device
        self._body = model.base_model
        self._head = model.get_output_embeddings()
        parameters = inspect.signature(self._body.forward).parameters
        self._cache_keyword = "cache" if "cache" in parameters else "past_key_values"
        self._cache = SlotCache(num_rows + 1)
        self.ids = np.zeros((num_rows + 1, self._cache.capacity), dtype=np.int64)
        self.length = np.zeros(num_rows + 1, dtype=np.int64)
        self.version = np.full(num_rows + 1, NO_VERSION, dtype=np.int64)

    def reserve(self, num_tokens: int) -> None:
        self._cache.reserve(num_tokens)
        if self.ids.shape[1] < self._cache.capacity:
            grown = np.zeros((len(self.ids), self._cache.capacity), dtype=np.int64)
            grown[:, : self.ids.shape[1]] = self.ids
            self.ids = grown

    def forget(self, row: int) -> None:
        self.length[row], self.version[row] = 0, NO_VERSION

    def shared_prefixes(self, prompt: NDArray[np.int64], version: int) -> NDArray[np.int64]:
        """Per row, how many tokens of ``prompt`` it holds KV for, computed by ``version`` alone; 0 for other rows.

        At most all but the last: the last token of a prompt is always run, for its logits.
        """
        width = min(len(prompt) - 1, self.ids.shape[1])
        same = (self.ids[: self.num_rows, :width] == prompt[:width]) & (
            np.arange(width) < self.length[: self.num_rows, None]
        )
        shared = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        return np.where(self.version[: self.num_rows] == version, shared, 0)

    def adopt(self, row: int, source: int, num_tokens: int, version: int) -> None:
        """Row starts with the first ``num_tokens`` of ``source`` (itself, or a sibling whose KV is copied)."""
        if source != row:
            self._cache.copy_prefix(source, row, num_tokens)
            self.ids[row, :num_tokens] = self.ids[source, :num_tokens]
        self.length[row], self.version[row] = num_tokens, version

    def prefill(
        self,
        rows: Sequence[int],
        prompts: Sequence[NDArray[np.int64]],
        samplings: Sequence[Sampling],
        uniforms: Sequence[float],
    ) -> tuple[list[int], list[float]]:
        """Run what each row lacks of its prompt and draw the first token of each."""
        last_ND: list[Tensor] = [torch.empty(0)] * len(rows)
        while any(self.length[row] < len(prompt) for row, prompt in zip(rows, prompts, strict=True)):
            todo = [i for i, row in enumerate(rows) if self.length[row] < len(prompts[i])]
            widths = [min(len(prompts[i]) - self.length[rows[i]], PREFILL_CHUNK) for i in todo]
            fits = max(1, PREFILL_TOKENS // max(widths))
            chunk, widths = todo[:fits], widths[:fits]
            hidden_NLD = self._run([rows[i] for i in chunk], [prompts[i] for i in chunk], widths)
            for place, i in enumerate(chunk):
                last_ND[i] = hidden_NLD[place, widths[place] - 1]
        ids_N, logprobs_N = draw(self._logits(torch.stack(last_ND)), samplings, uniforms)
        return ids_N.tolist(), logprobs_N.tolist()

    def _run(self, rows: Sequence[int], prompts: Sequence[NDArray[np.int64]], widths: Sequence[int]) -> Tensor:
        """Forward of the next ``widths`` tokens of each prompt; padding lands unseen behind a row's end."""
        starts = self.length[list(rows)]
        longest = max(widths)
        self.reserve(int(starts.max()) + longest + 1)
        ids_NL = np.zeros((len(rows), longest), dtype=np.int64)
        for place, (row, prompt, width) in enumerate(zip(rows, prompts, widths, strict=True)):
            piece = prompt[starts[place] : starts[place] + width]
            ids_NL[place, :width] = piece
            self.ids[row, starts[place] : starts[place] + width] = piece
            self.length[row] += width
        positions_NL = starts[:, None] + np.arange(longest)
        index_N = torch.tensor(rows, device=self.device)
        return self._forward(index_N, index_N, ids_NL, positions_NL)

    def step(
        self, rows: Sequence[int], next_ids: Sequence[int], samplings: Sequence[Sampling], uniforms: Sequence[float]
    ) -> tuple[list[int], list[float]]:
        """Feed one token to each of ``rows`` (ascending) and draw the next.

        All rows up to the last live one take part, so that KV is read in place; what that writes for idle rows lies
        behind their end.
        """
        num = rows[-1] + 1
        live = np.asarray(rows)
        self.reserve(int(self.length[:num].max()) + 2)
        ids_N1 = np.zeros((num, 1), dtype=np.int64)
        ids_N1[live, 0] = next_ids
        positions_N1 = self.length[:num, None].copy()
        hidden_N1D = self._forward(
            slice(0, num),
            torch.arange(num, device=self.device),
            ids_N1,
            positions_N1,
            last=int(self.length[live].max()),
        )
        self.ids[live, self.length[live]] = next_ids
        self.length[live] += 1
        chosen_ND = hidden_N1D[torch.from_numpy(live).to(self.device), 0]
        ids_N, logprobs_N = draw(self._logits(chosen_ND), samplings, uniforms)
        return ids_N.tolist(), logprobs_N.tolist()

    def score(self, token_ids: Sequence[int]) -> list[float]:
        """Log-probs at temperature 1 of tokens 1.. of ``token_ids``, by the path that serves."""
        row, prompt = self.num_rows, np.asarray(token_ids, dtype=np.int64)
        self.forget(row)
        hidden_1LD = self._run([row], [prompt], [len(prompt)])
        logprobs_LV = torch.log_softmax(self._logits(hidden_1LD[0, :-1]), dim=-1)
        targets_L = torch.from_numpy(prompt[1:]).to(self.device)
        return logprobs_LV.gather(1, targets_L[:, None])[:, 0].tolist()

    def _forward(
        self,
        rows: Rows,
        index_N: Tensor,
        ids_NL: NDArray[np.int64],
        positions_NL: NDArray[np.int64],
        *,
        last: int | None = None,
    ) -> Tensor:
        """Hidden states [N, L, D]. Token at position p of a row sees positions 0..p of that row."""
        num_read = (int(positions_NL.max()) if last is None else last) + 1
        positions = torch.from_numpy(positions_NL).to(self.device)
        visible_N1LS = torch.arange(num_read, device=self.device) <= positions[:, None, :, None]
        self._cache.begin(rows, index_N, positions, num_read=num_read)
        return self._body(
            input_ids=torch.from_numpy(ids_NL).to(self.device),
            attention_mask=visible_N1LS,
            position_ids=positions,
            use_cache=True,
            **{self._cache_keyword: self._cache},
        ).last_hidden_state

    def _logits(self, hidden_ND: Tensor) -> Tensor:
        return self._head(hidden_ND).float()


def refuse_unsupported(config: Any) -> None:
    for name, what in REFUSED.items():
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ConfigError(
                f"the model {what} ({name}), which the embedded engine does not", setting="--engine slots"
            )
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        raise ConfigError(
            f"the model has layers of {', '.join(sorted(layer_types))}; the embedded engine knows full attention only",
            setting="--engine slots",
        )
