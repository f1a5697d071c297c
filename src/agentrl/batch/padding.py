"""Ragged rows to a right-padded rectangle: lengths decide what is real, never the value of the pad id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.batch.segments import SampleError


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedRows:
    """Shapes: B rows, L the padded length."""

    ids_BL: NDArray[np.int64]
    attention_mask_BL: NDArray[np.int64]
    loss_mask_BL: NDArray[np.int64]
    lengths_B: NDArray[np.int64]


def pad_right(rows: Sequence[Mapping[str, Sequence[int]]], *, pad_id: int, pad_to: int | None = None) -> PaddedRows:
    """Pad rows of ``ids`` and ``loss_mask`` to the longest, or to ``pad_to``; a longer row is an error, never cut."""
    lengths = np.array([len(row["ids"]) for row in rows], dtype=np.int64)
    longest = int(lengths.max(initial=0))
    width = longest if pad_to is None else pad_to
    if longest > width:
        raise SampleError(f"row {int(lengths.argmax())} has {longest} tokens, pad_to is {width}", kind="too_long")
    ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    loss_mask = np.zeros((len(rows), width), dtype=np.int64)
    for index, row in enumerate(rows):
        if len(row["loss_mask"]) != len(row["ids"]):
            raise SampleError(f"row {index}: ids and loss_mask differ in length", kind="length_mismatch")
        ids[index, : lengths[index]] = row["ids"]
        loss_mask[index, : lengths[index]] = row["loss_mask"]
    attention_mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    return PaddedRows(ids_BL=ids, attention_mask_BL=attention_mask, loss_mask_BL=loss_mask, lengths_B=lengths)
