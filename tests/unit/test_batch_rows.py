"""Turns to rows: what is trained, what is context, and why."""

import math

import pytest

from agentrl.batch import SampleError, build_row, pad_right
from agentrl.types import DBRecordData, DispatchedSamplingTask, MaskCause, Sampling, VersionSpan


def turn(
    number: int,
    parent: int | None,
    delta: list[int],
    sampled: list[int],
    *,
    logprobs: list[float] | None = None,
    spans: tuple[VersionSpan, ...] | None = None,
    status: str = "completed",
    temperature: float = 1.0,
) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(
        record="r",
        turn=number,
        parent=parent,
        prompt_ids_delta=delta,
        token_ids=sampled,
        logprobs=[-0.5] * len(sampled) if logprobs is None else logprobs,
        version_spans=(VersionSpan(start=0, end=len(sampled), version=3),) if spans is None else spans,
        sampling=Sampling(max_new_tokens=8, temperature=temperature),
        finish_reason="stop",
        status=status,
    )


def row_of(*turns: DispatchedSamplingTask, advantages: list[float] | None = None) -> DBRecordData:
    return build_row(
        task="t",
        seq=5,
        slot=1,
        record="t/1/0",
        turns=turns,
        turn_advantages=[1.0] * len(turns) if advantages is None else advantages,
        reward=0.25,
    )


def test_a_row_lays_turns_out_in_order_with_delta_then_sampled() -> None:
    row = row_of(turn(1, 0, [4], [12, 13], temperature=0.7), turn(0, None, [1, 2], [10, 11]), advantages=[0.0, 1.0])
    assert row.token_ids == (1, 2, 10, 11, 4, 12, 13)
    assert row.mask == (0, 0, 1, 1, 0, 1, 1)
    assert row.versions == (-1, -1, 3, 3, -1, 3, 3)
    assert [math.isnan(value) for value in row.behavior_logprobs] == [True, True, False, False, True, False, False]
    assert [(span.start, span.end, span.parent) for span in row.turns] == [(0, 4, -1), (4, 7, 0)]
    assert [(span.advantage, span.temperature) for span in row.turns] == [(1.0, 1.0), (0.0, 0.7)]
    assert (row.task, row.seq, row.slot, row.record, row.reward) == ("t", 5, 1, "t/1/0", 0.25)


def test_every_token_keeps_the_version_that_sampled_it() -> None:
    spans = (VersionSpan(start=0, end=1, version=2), VersionSpan(start=1, end=3, version=4))
    row = row_of(turn(0, None, [1], [10, 11, 12], spans=spans))
    assert row.versions == (-1, 2, 4, 4)
    assert (row.start_version, row.end_version) == (2, 4)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (turn(1, 0, [4], [12, 13], logprobs=[]), MaskCause.NO_LOGPROB),
        (turn(1, 0, [4], [12, 13], logprobs=[-0.1]), MaskCause.NO_LOGPROB),
        (turn(1, 0, [4], [12, 13], logprobs=[-0.1, math.nan]), MaskCause.NO_LOGPROB),
        (turn(1, 0, [4], [12, 13], status="cancelled", spans=()), MaskCause.CANCELLED),
        (turn(1, 0, [4], [12, 13], status="failed", logprobs=[]), MaskCause.CANCELLED),
    ],
)
def test_a_turn_that_cannot_be_trained_stays_as_context_with_its_cause(
    bad: DispatchedSamplingTask, cause: MaskCause
) -> None:
    row = row_of(turn(0, None, [1], [10]), bad, turn(2, 1, [5], [14]))
    assert row.token_ids == (1, 10, 4, 12, 13, 5, 14)
    assert row.mask == (0, 1, 0, cause, cause, 0, 1)
    assert math.isnan(row.behavior_logprobs[3])
    assert row.versions[3] == -1


def test_a_logprob_of_zero_is_trained() -> None:
    assert row_of(turn(0, None, [1], [10], logprobs=[0.0])).mask == (0, MaskCause.SAMPLED)


def test_a_record_without_trained_turns_has_no_version() -> None:
    row = row_of(turn(0, None, [1], [10], logprobs=[]))
    assert (row.start_version, row.end_version) == (-1, -1)


@pytest.mark.parametrize(
    ("turns", "kind"),
    [
        ([turn(1, 0, [4], [12])], "parent_missing"),
        ([turn(0, 0, [4], [12])], "parent_missing"),
        ([turn(0, None, [1], [10]), turn(0, None, [1], [11])], "duplicate_turn"),
        ([turn(0, None, [1], [10, 11], spans=(VersionSpan(start=0, end=1, version=1),))], "version_missing"),
    ],
)
def test_turns_that_contradict_each_other_are_refused(turns: list[DispatchedSamplingTask], kind: str) -> None:
    with pytest.raises(SampleError) as caught:
        row_of(*turns)
    assert caught.value.kind == kind


def test_advantages_must_be_as_many_as_turns() -> None:
    with pytest.raises(SampleError, match="2 advantages, 1 turns"):
        row_of(turn(0, None, [1], [10]), advantages=[1.0, 2.0])


def test_padding_refuses_a_row_that_is_longer_than_asked_for() -> None:
    with pytest.raises(SampleError, match="row 1 has 3 tokens, pad_to is 2"):
        pad_right([{"ids": [1], "loss_mask": [0]}, {"ids": [1, 2, 3], "loss_mask": [0, 1, 1]}], pad_id=0, pad_to=2)
