"""The turns of one record to the row training consumes: a turn tree over flat token arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentrl.batch.segments import SampleError
from agentrl.types import DBRecordData, DispatchedSamplingTask, MaskCause, TurnSpan


def build_row(
    *,
    task: str,
    seq: int,
    slot: int,
    record: str,
    turns: Sequence[DispatchedSamplingTask],
    turn_advantages: Sequence[float | None],
    reward: float = 0.0,
) -> DBRecordData:
    """Lay out ``turns`` one after the other; ``turn_advantages`` is parallel to ``turns``, None for a turn that an
    option filters out.

    Each sampled token appears once, so it is trained once however many later turns share it as context. A turn that was
    cancelled or failed, is filtered out, or lacks a finite log-prob for each token, stays as context with its cause in
    ``mask``.
    Raise ``SampleError`` for a parent that is not there and for trained tokens without a weight version.
    """
    if len(turns) != len(turn_advantages):
        raise SampleError(f"{record}: {len(turn_advantages)} advantages, {len(turns)} turns", kind="length_mismatch")
    ordered = sorted(zip(turns, turn_advantages, strict=True), key=lambda pair: pair[0].turn)
    index_of = {turn.turn: index for index, (turn, _) in enumerate(ordered)}
    if len(index_of) != len(ordered):
        raise SampleError(f"{record}: a turn number appears twice", kind="duplicate_turn")
    token_ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    versions: list[int] = []
    spans: list[TurnSpan] = []
    for turn, advantage in ordered:
        start, num_context, num_sampled = len(token_ids), len(turn.prompt_ids_delta), len(turn.token_ids)
        cause = cause_of(turn, advantage)
        trained = cause is MaskCause.SAMPLED
        token_ids += [*turn.prompt_ids_delta, *turn.token_ids]
        mask += [int(MaskCause.CONTEXT)] * num_context + [int(cause)] * num_sampled
        logprobs += [math.nan] * num_context + (list(turn.logprobs) if trained else [math.nan] * num_sampled)
        versions += [-1] * num_context + (sampled_versions(turn) if trained else [-1] * num_sampled)
        spans.append(
            TurnSpan(
                start=start,
                end=len(token_ids),
                parent=parent_index(turn, index_of),
                advantage=advantage or 0.0,
                temperature=turn.sampling.temperature,
            )
        )
    used = [version for version in versions if version >= 0]
    return DBRecordData(
        record=record,
        task=task,
        seq=seq,
        slot=slot,
        token_ids=tuple(token_ids),
        mask=tuple(mask),
        behavior_logprobs=tuple(logprobs),
        versions=tuple(versions),
        turns=tuple(spans),
        start_version=min(used, default=-1),
        end_version=max(used, default=-1),
        reward=reward,
    )


def cause_of(turn: DispatchedSamplingTask, advantage: float | None) -> MaskCause:
    """Why the sampled tokens of a turn are or are not trained."""
    if turn.status != "completed":
        return MaskCause.CANCELLED
    if advantage is None:
        return MaskCause.FILTERED
    complete = len(turn.logprobs) == len(turn.token_ids) and all(math.isfinite(value) for value in turn.logprobs)
    return MaskCause.SAMPLED if complete else MaskCause.NO_LOGPROB


def parent_index(turn: DispatchedSamplingTask, index_of: dict[int, int]) -> int:
    if turn.parent is None:
        return -1
    if turn.parent not in index_of or turn.parent >= turn.turn:
        raise SampleError(f"{turn.id} extends turn {turn.parent}, which is not before it", kind="parent_missing")
    return index_of[turn.parent]


def sampled_versions(turn: DispatchedSamplingTask) -> list[int]:
    """Version of each sampled token; the spans must cover all of them."""
    versions = [-1] * len(turn.token_ids)
    for span in turn.version_spans:
        versions[span.start : span.end] = [span.version] * len(versions[span.start : span.end])
    if -1 in versions:
        raise SampleError(
            f"{turn.id}: token {versions.index(-1)} of {len(versions)} lies in no version span", kind="version_missing"
        )
    return versions
