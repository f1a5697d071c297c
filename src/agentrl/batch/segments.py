"""What was said, token by token, to training segments: ids, loss mask, behaviour log-probs, weight versions.

Nothing is tokenised here. A token is trained exactly where it was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import AgentRLError


class SampleError(AgentRLError):
    """A sample cannot be trained. ``kind`` is logprobs_missing, length_mismatch, logprob_not_finite or another noun."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(slots=True, kw_only=True)
class Segment:
    """One growing context. All lists have one entry per token and are not shifted.

    ``behavior_logprobs`` and ``weight_versions`` are None on tokens that nobody sampled; ``turns`` are the indices of
    the model calls whose tokens this segment trains.
    """

    ids: list[int] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    behavior_logprobs: list[float | None] = field(default_factory=list)
    weight_versions: list[int | None] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @property
    def positions(self) -> list[int]:
        return list(range(len(self.ids)))

    def add_context(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.loss_mask += [0] * len(ids)
        self.behavior_logprobs += [None] * len(ids)
        self.weight_versions += [None] * len(ids)

    def add_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], *, version: int | None = None, train: bool = True
    ) -> None:
        self.ids += ids
        self.loss_mask += [int(train)] * len(ids)
        self.behavior_logprobs += logprobs
        self.weight_versions += [version] * len(ids)


def segment_events(events: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """One segment from stretches of tokens in order: ``token_ids``, ``sampled``, ``logprobs``, ``train`` (or true).

    Raise ``SampleError`` when a sampled stretch lacks a finite log-prob for each token.
    """
    segment = Segment()
    for index, event in enumerate(events):
        if not event["sampled"]:
            segment.add_context(event["token_ids"])
            continue
        logprobs = checked_logprobs(event["token_ids"], event.get("logprobs"), where=f"event {index}")
        segment.add_sampled(
            event["token_ids"], logprobs, version=event.get("weight_version"), train=event.get("train", True)
        )
        segment.turns.append(len(segment.turns))
    return [segment]


def segment_turns(turns: Sequence[Mapping[str, Any]]) -> list[Segment]:
    """Segments of model calls given by exact ``prompt_ids``, ``output_ids`` and ``logprobs``.

    A call continues the segment whose whole content is a prefix of its prompt (the longest one), otherwise it opens a
    new segment; what its prompt adds is context. So every sampled token is trained once, in the segment that made it.
    """
    segments: list[Segment] = []
    for index, turn in enumerate(turns):
        prompt = list(turn["prompt_ids"])
        logprobs = checked_logprobs(turn["output_ids"], turn.get("logprobs"), where=f"turn {index}")
        segment = continued_by(prompt, segments)
        if segment is None:
            segment = Segment()
            segments.append(segment)
        segment.add_context(prompt[len(segment.ids) :])
        segment.add_sampled(
            turn["output_ids"], logprobs, version=turn.get("weight_version"), train=turn.get("train", True)
        )
        segment.turns.append(index)
    return segments


def continued_by(prompt: list[int], segments: Sequence[Segment]) -> Segment | None:
    """The longest segment whose whole content is a prefix of ``prompt``."""
    candidates = [segment for segment in segments if prompt[: len(segment.ids)] == segment.ids]
    return max(candidates, key=lambda segment: len(segment.ids), default=None)


def checked_logprobs(ids: Sequence[int], logprobs: Sequence[float] | None, *, where: str) -> list[float]:
    """``logprobs``, which must hold one finite number for each id; 0.0 is a number."""
    if logprobs is None:
        raise SampleError(f"{where} sampled {len(ids)} tokens and has no log-probs", kind="logprobs_missing")
    if len(logprobs) != len(ids):
        raise SampleError(f"{where} has {len(logprobs)} log-probs for {len(ids)} tokens", kind="length_mismatch")
    for position, value in enumerate(logprobs):
        if value is None or not math.isfinite(value):
            raise SampleError(f"{where}: log-prob of token {position} is {value}", kind="logprob_not_finite")
    return [float(value) for value in logprobs]
