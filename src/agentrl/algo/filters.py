"""What a finished group is worth: which slots are trained with which advantage, and what turn flags change."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentrl.algo.advantage import estimate_advantages, is_usable
from agentrl.config import AlgoOptions
from agentrl.types import Flag, GroupVerdict, TaskStatus

CAPPING_FLAGS = frozenset({Flag.FORMAT_ERROR, Flag.REPEAT_ERROR})
"""A failed tool is the tool's doing, a malformed call or a repeat is the model's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """One slot as the judge sees it. ``score`` None: not judged; ``valid`` False: broken, outside every baseline."""

    slot: int
    score: float | None
    valid: bool = True


def judge_group(members: Sequence[GroupMember], options: AlgoOptions) -> GroupVerdict:
    """Advantages of the valid members, or why the group or a slot is not trained.

    Fewer than two valid members: abandoned("too_few_valid"). All scores equal: abandoned("no_signal") with
    ``drop_zero_advantage``, else advantage 0, which keeps the tokens in the denominator of the loss.
    """
    left_out = {member.slot: reason for member in members if (reason := why_left_out(member))}
    valid = [member for member in members if member.slot not in left_out]
    estimate = estimate_advantages([member.score for member in valid], estimator=options.advantage_estimator)
    if not estimate.usable:
        return abandoned("too_few_valid", valid, left_out)
    if estimate.zero_variance and options.drop_zero_advantage:
        return abandoned("no_signal", valid, left_out)
    advantages = {
        member.slot: value * options.adv_scaling
        for member, value in zip(valid, estimate.values, strict=True)
        if value is not None
    }
    return GroupVerdict(slots=dict(sorted({**left_out, **advantages}.items())), status=TaskStatus.COMPLETED)


def why_left_out(member: GroupMember) -> str:
    """Reason a member is outside the baseline, or an empty text."""
    if not member.valid:
        return "invalid"
    return "" if is_usable(member.score) else "unscored"


def abandoned(reason: str, valid: Sequence[GroupMember], left_out: dict[int, str]) -> GroupVerdict:
    slots = {**left_out, **{member.slot: reason for member in valid}}
    return GroupVerdict(slots=dict(sorted(slots.items())), status=TaskStatus.ABANDONED, reason=reason)


def turn_advantages(advantage: float, flags_per_turn: Sequence[Iterable[Flag]]) -> list[float]:
    """Advantage of each turn: the record's, at most 0 where the turn was malformed or repeated an earlier one."""
    return [min(advantage, 0.0) if CAPPING_FLAGS.intersection(flags) else advantage for flags in flags_per_turn]
