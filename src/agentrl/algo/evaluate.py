"""A loss on plain lists in float64: the code that training runs, for cases and for questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentrl.algo.losses import LOSSES, Loss, LossSettings
from agentrl.algo.reduction import reduction_weights
from agentrl.algo.tensors import LossInputs

CASE_NAMES = {
    "grpo": "GRPO",
    "dr_grpo": "DR_GRPO",
    "dapo": "DAPO",
    "gspo": "GSPO",
    "cispo": "CISPO",
    "minirl": "MINIRL",
    "minirl_reference": "MINIRL",
    "cross_entropy": "CrossEntropy",
}


def evaluate_loss(
    name: str, sequences: Sequence[Mapping[str, Sequence[float]]], *, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Run a loss on ragged plain lists in float64; names and options as in ``tests/cases/losses.json``.

    Returns ``loss`` (number) and ``token_loss``, ``stopped``, ``grad`` (d loss / d logprobs) as lists per sequence.
    """
    loss = Loss(name=name, token_loss=LOSSES[CASE_NAMES.get(name, name)], settings=case_settings(name, options))
    places = [(b, t) for b, sequence in enumerate(sequences) for t, m in enumerate(sequence["mask"]) if m]

    def flat(key: str) -> Tensor | None:
        if any(key not in sequence for sequence in sequences):
            return None
        return torch.tensor([sequences[b][key][t] for b, t in places], dtype=torch.float64)

    segments = np.array([b for b, _ in places], dtype=np.int64)
    weights = reduction_weights(
        segments, num_sequences=len(sequences), reduction=options["reduction"], constant=options.get("constant")
    )
    logprobs, advantages, sampled_at = flat("logprobs"), flat("advantages"), flat("sampled_at_step")
    assert logprobs is not None, "every sequence has logprobs"
    assert advantages is not None, "every sequence has advantages"
    proximal = None if name == "minirl_reference" else flat("old_logprobs")
    behavior = flat("behavior_logprobs")
    logprobs.requires_grad_(True)
    out = loss(
        LossInputs(
            logprobs=logprobs,
            behavior_logprobs=proximal if behavior is None else behavior,
            proximal_logprobs=proximal,
            advantages=advantages,
            weights=torch.from_numpy(weights),
            segments=torch.from_numpy(segments),
            age=torch.zeros(len(places)) if sampled_at is None else options["current_step"] - sampled_at,
        )
    )
    out.loss.backward()
    assert logprobs.grad is not None, "backward reached the log-probs"

    def ragged(values: Tensor, empty: Any) -> list[list[Any]]:
        rows: list[list[Any]] = [[empty] * len(sequence["mask"]) for sequence in sequences]
        for (b, t), value in zip(places, values.tolist(), strict=True):
            rows[b][t] = value
        return rows

    return {
        "token_loss": ragged(out.token_loss.detach(), 0.0),
        "stopped": ragged(out.stopped, False),
        "loss": float(out.loss.detach()),
        "grad": ragged(logprobs.grad, 0.0),
    }


def case_settings(name: str, options: Mapping[str, Any]) -> LossSettings:
    known = {key: options[key] for key in LossSettings.__dataclass_fields__ if key in options}
    return LossSettings(**{"out_of_bound_mask": name == "minirl_reference", **known})
