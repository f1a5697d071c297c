"""Equality of two mathematical answers: shapes and exact numbers here, algebra in a worker that can be killed."""

from __future__ import annotations

from dataclasses import dataclass

from agentrl.scoring.exact_numbers import read_number
from agentrl.scoring.math_answer import Answer, Unreadable, read_answer
from agentrl.scoring.math_same import same
from agentrl.scoring.pool import Job, JobCrashed, JobTimedOut, WorkerEnded, shared_pool

COMPARE_SECONDS = 5.0
MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Equality:
    """``equal`` is False also for what could not be decided; ``undecided`` then says why."""

    equal: bool
    undecided: str = ""


def math_equal(prediction: str, truth: str, *, timeout_seconds: float = COMPARE_SECONDS) -> bool:
    """Whether both texts denote the same mathematical object; what cannot be shown equal is not equal.

    Exact: decimals are taken as written, no tolerance anywhere. Exchanging the sides does not change the verdict. Text
    is never evaluated. ``timeout_seconds`` is for the comparison; starting the first worker has its own limit. Works
    in threads and daemon processes. Raise ``ScoringError`` only when no worker process can be had.
    """
    return compare_mathematics(prediction, truth, timeout_seconds=timeout_seconds).equal


def compare_mathematics(prediction: str, truth: str, *, timeout_seconds: float = COMPARE_SECONDS) -> Equality:
    """``math_equal`` with the reason when the comparison was given up. Blocks for up to the time limit."""
    verdict = compare_here(prediction, truth)
    if verdict is not None:
        return verdict
    try:
        equal, undecided = shared_pool("math").run(algebra_job(prediction, truth, timeout_seconds))
    except (JobTimedOut, WorkerEnded, JobCrashed) as error:
        return Equality(equal=False, undecided=str(error))
    return Equality(equal=equal, undecided=undecided)


def compare_here(prediction: str, truth: str) -> Equality | None:
    """The verdict that needs no algebra; None when a leaf does."""
    prediction, truth = prediction.strip(), truth.strip()
    if not prediction or not truth:
        return Equality(equal=False)
    if prediction == truth:
        return Equality(equal=True)
    numbers = read_number(prediction), read_number(truth)
    if None not in numbers:
        return Equality(equal=numbers[0] == numbers[1])
    try:
        verdict = same(read_answer(prediction), read_answer(truth), leave_open)
    except Unreadable as error:
        return Equality(equal=False, undecided=str(error))
    return None if verdict is None else Equality(equal=verdict)


def algebra_job(prediction: str, truth: str, timeout_seconds: float) -> Job:
    return Job(
        targets=("agentrl.scoring.math_equality:compare_with_algebra", "agentrl.scoring.algebra:equal_leaves"),
        arguments=(prediction, truth),
        deadline_seconds=timeout_seconds,
        memory_bytes=MEMORY_BYTES,
    )


def leave_open(left: Answer, right: Answer) -> bool | None:
    return None


def compare_with_algebra(prediction: str, truth: str) -> tuple[bool, str]:
    """The whole comparison, leaves included; called in the worker."""
    from agentrl.scoring.algebra import NotAlgebra, equal_leaves

    reasons: list[str] = []

    def leaf(left: Answer, right: Answer) -> bool | None:
        try:
            return equal_leaves(left, right)
        except NotAlgebra as error:
            reasons.append(str(error))
            return False

    verdict = same(read_answer(prediction), read_answer(truth), leaf)
    return bool(verdict), "" if verdict else "; ".join(dict.fromkeys(reasons))
