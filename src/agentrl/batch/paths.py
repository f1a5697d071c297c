"""Rows to paths: the root-to-leaf contexts of each record, with the predictions that are trained on them.

A path is a segment of one record: turns that extend one another. A turn that branches off a turn which was already
extended starts a path of its own: it repeats the shared context and trains only what is new, so every sampled token is
trained once per record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.batch.segments import SampleError
from agentrl.types import DBRecordData, MaskCause, TurnSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedPath:
    """P trained predictions on a context of L tokens; prediction p reads depth ``source_P[p]`` of the path.

    The context ends at the last source: the last target is predicted, not read.
    """

    row: int
    token_ids_L: NDArray[np.int64]
    source_P: NDArray[np.int64]
    targets_P: NDArray[np.int64]
    behavior_logprobs_P: NDArray[np.float64]
    versions_P: NDArray[np.int64]
    advantages_P: NDArray[np.float64]
    temperature_P: NDArray[np.float64]
    pure_P: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPaths:
    """The paths of one row. ``over_long`` turns end beyond the limit and are not trained; ``unpredictable`` tokens
    have nothing before them to be predicted from."""

    paths: tuple[TrainedPath, ...]
    over_long: int
    unpredictable: int


def row_paths(row: DBRecordData, *, index: int, max_tokens: int) -> RowPaths:
    """Paths of one row that train something; the longest trained path has at most ``max_tokens`` tokens."""
    arrays = RowArrays.of(row)
    starts, ends = turn_depths(row)
    over_long = unpredictable = 0
    paths = []
    for turns in chains(row.turns):
        trained: list[tuple[int, NDArray[np.int64]]] = []
        for turn in turns:
            span = row.turns[turn]
            sampled = span.start + np.flatnonzero(arrays.mask[span.start : span.end] == MaskCause.SAMPLED)
            if not len(sampled):
                continue
            if ends[turn] > max_tokens:
                over_long += 1
                continue
            first_of_root = sampled[0] == span.start and starts[turn] == 0
            unpredictable += int(first_of_root)
            trained.append((turn, sampled[int(first_of_root) :]))
        trained = [(turn, sampled) for turn, sampled in trained if len(sampled)]
        if trained:
            paths.append(trained_path(row, arrays, index, starts, trained))
    return RowPaths(paths=tuple(paths), over_long=over_long, unpredictable=unpredictable)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowArrays:
    """The per-token fields of a row as arrays of its length N."""

    token_ids: NDArray[np.int64]
    mask: NDArray[np.int64]
    behavior_logprobs: NDArray[np.float64]
    versions: NDArray[np.int64]

    @classmethod
    def of(cls, row: DBRecordData) -> RowArrays:
        arrays = cls(
            token_ids=np.asarray(row.token_ids, dtype=np.int64),
            mask=np.asarray(row.mask, dtype=np.int64),
            behavior_logprobs=np.asarray(row.behavior_logprobs, dtype=np.float64),
            versions=np.asarray(row.versions, dtype=np.int64),
        )
        lengths = {len(arrays.token_ids), len(arrays.mask), len(arrays.behavior_logprobs), len(arrays.versions)}
        if len(lengths) != 1:
            raise SampleError(
                f"{row.record}: its per-token arrays have lengths {sorted(lengths)}", kind="length_mismatch"
            )
        return arrays


def turn_depths(row: DBRecordData) -> tuple[list[int], list[int]]:
    """Depth at which each turn's tokens start and end, counted from the root of its tree."""
    starts: list[int] = []
    ends: list[int] = []
    for index, span in enumerate(row.turns):
        if not -1 <= span.parent < index:
            raise SampleError(f"{row.record}: turn {index} extends turn {span.parent}", kind="parent_missing")
        starts.append(ends[span.parent] if span.parent >= 0 else 0)
        ends.append(starts[-1] + span.end - span.start)
    return starts, ends


def chains(turns: Sequence[TurnSpan]) -> list[list[int]]:
    """Turns in chains: a turn joins its parent's chain if it is the first to extend it, else it opens a new one."""
    result: list[list[int]] = []
    chain_ending_at: dict[int, list[int]] = {}
    for index, span in enumerate(turns):
        chain = chain_ending_at.pop(span.parent, None)
        if chain is None:
            chain = []
            result.append(chain)
        chain.append(index)
        chain_ending_at[index] = chain
    return result


def trained_path(
    row: DBRecordData,
    arrays: RowArrays,
    index: int,
    starts: Sequence[int],
    trained: Sequence[tuple[int, NDArray[np.int64]]],
) -> TrainedPath:
    """``trained`` holds, per trained turn of one chain, where its targets stand in the row."""
    where = np.concatenate([sampled for _, sampled in trained])
    depth = np.concatenate([sampled - row.turns[turn].start + starts[turn] for turn, sampled in trained])
    repeats = [len(sampled) for _, sampled in trained]
    spans = [row.turns[turn] for turn, _ in trained]
    pure = [is_pure(arrays, span) for span in spans]
    return TrainedPath(
        row=index,
        token_ids_L=arrays.token_ids[context(row.turns, trained[-1][0])][: depth[-1]],
        source_P=depth - 1,
        targets_P=arrays.token_ids[where],
        behavior_logprobs_P=arrays.behavior_logprobs[where],
        versions_P=arrays.versions[where],
        advantages_P=np.repeat([span.advantage for span in spans], repeats),
        temperature_P=np.repeat([span.temperature for span in spans], repeats),
        pure_P=np.repeat(pure, repeats),
    )


def is_pure(arrays: RowArrays, span: TurnSpan) -> bool:
    """Whether one version sampled the whole turn."""
    versions = arrays.versions[span.start : span.end][arrays.mask[span.start : span.end] == MaskCause.SAMPLED]
    return bool((versions == versions[0]).all())


def context(turns: Sequence[TurnSpan], turn: int) -> NDArray[np.int64]:
    """Where the tokens from the root to the end of ``turn`` stand in the row."""
    parts = []
    while turn >= 0:
        parts.append(np.arange(turns[turn].start, turns[turn].end))
        turn = turns[turn].parent
    return np.concatenate(parts[::-1])
