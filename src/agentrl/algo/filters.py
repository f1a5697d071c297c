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
    """One slot as the judge sees it. ``score`` None: not judged; ``valid`` False: broken, outside every baseline.
    ``num_turns`` None: not known, no filter on it."""

    slot: int
    score: float | None
    valid: bool = True
    num_turns: int | None = None


def judge_group(members: Sequence[GroupMember], options: AlgoOptions) -> GroupVerdict:
    """Advantages of the valid members, or why the group or a slot is not trained.

    Fewer than two valid members: abandoned("too_few_valid"). All scores equal: abandoned("no_signal") with
    ``drop_zero_advantage``, else advantage 0, which keeps the tokens in the denominator of the loss. Filters act after
    the baseline, so that they change no other sibling's advantage; all of them filtered: abandoned("filtered").
    """
    left_out = {member.slot: reason for member in members if (reason := why_left_out(member))}
    valid = [member for member in members if member.slot not in left_out]
    estimate = estimate_advantages([member.score for member in valid], estimator=options.advantage_estimator)
    if not estimate.usable:
        return abandoned("too_few_valid", valid, left_out)
    if estimate.zero_variance and options.drop_zero_advantage:
        return abandoned("no_signal", valid, left_out)
    advantages = {
        member.slot: why_filtered(member, value * options.adv_scaling, options) or value * options.adv_scaling
        for member, value in zip(valid, estimate.values, strict=True)
        if value is not None
    }
    slots = dict(sorted({**left_out, **advantages}.items()))
    if all(isinstance(value, str) for value in slots.values()):
        return GroupVerdict(slots=slots, status=TaskStatus.ABANDONED, reason="filtered")
    return GroupVerdict(slots=slots, status=TaskStatus.COMPLETED)


def why_left_out(member: GroupMember) -> str:
    """Reason a member is outside the baseline, or an empty text."""
    if not member.valid:
        return "invalid"
    return "" if is_usable(member.score) else "unscored"


def why_filtered(member: GroupMember, advantage: float, options: AlgoOptions) -> str:
    """Reason a member of the baseline is not trained, or an empty text."""
    if member.num_turns is not None and member.num_turns < options.min_turns and (member.score or 0.0) > 0:
        return "min_turns"
    return "" if is_trained(advantage, options) else "low_advantage"


def is_trained(advantage: float, options: AlgoOptions) -> bool:
    if options.skip_non_positive_advantage and advantage <= 0:
        return False
    return options.minimal_advantage is None or advantage >= options.minimal_advantage


def abandoned(reason: str, valid: Sequence[GroupMember], left_out: dict[int, str]) -> GroupVerdict:
    slots = {**left_out, **{member.slot: reason for member in valid}}
    return GroupVerdict(slots=dict(sorted(slots.items())), status=TaskStatus.ABANDONED, reason=reason)


def turn_advantages(
    advantage: float, flags_per_turn: Sequence[Iterable[Flag]], options: AlgoOptions
) -> list[float | None]:
    """Advantage of each turn: the record's, at most 0 where the turn was malformed or repeated an earlier one; None
    where that is filtered out."""
    capped = [min(advantage, 0.0) if CAPPING_FLAGS.intersection(flags) else advantage for flags in flags_per_turn]
    return [value if is_trained(value, options) else None for value in capped]
