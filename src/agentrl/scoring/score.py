"""One answer, one score: scored with a value, or unscored with the reason. A broken scorer is never a 0."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Mapping
from typing import Any

from agentrl.errors import ScoringError, boundary
from agentrl.scoring.calls import Result, call_scorer, finish, read_result
from agentrl.scoring.factory import Place, Scorer, require_scorer
from agentrl.scoring.math_equality import COMPARE_SECONDS, Equality, algebra_job, compare_here
from agentrl.scoring.pool import Job, JobCrashed, JobTimedOut, WorkerEnded, shared_pool
from agentrl.scoring.truth import Truth, accepted_answers
from agentrl.types import Score


async def score_answer(
    scorer: Any,
    answer: str | None,
    truth: Any,
    *,
    question: str = "",
    metadata: Mapping[str, Any] | None = None,
    deadline_seconds: float = 30.0,
    config: Mapping[str, Any] | None = None,
) -> Score:
    """The score of ``answer``; of several accepted truths (a list) the best one counts.

    No answer scores 0 without running anything. A crash, a deadline, NaN, a non-number, a process that ended give
    ``value`` None and say so in ``reason``. ``deadline_seconds`` is running time per truth, without waiting for a
    worker. Raise ``ConfigError`` for a scorer that cannot be used at all.
    """
    found = require_scorer(scorer)
    if found.place is Place.NONE:
        return Score(value=None, reason="the scorer 'none' gives no score", scorer=found.name)
    if answer is None or not answer.strip():
        return Score(value=0.0, reason="no answer", scorer=found.name)
    answers = accepted_answers(truth) or ([] if found.needs_truth else [None])
    if not answers:
        return Score(value=None, reason="the task has no answer to compare with", scorer=found.name)
    truths = [Truth(each, query=question, metadata=metadata) for each in answers]
    return await best_score(found, answer, truths, config or {}, deadline_seconds)


async def best_score(
    scorer: Scorer, answer: str, truths: list[Truth], config: Mapping[str, Any], deadline_seconds: float
) -> Score:
    """Unscored when a truth could not be compared and none of the others was met in full."""
    best: Result | None = None
    failure = ""
    for truth in truths:
        try:
            async with boundary(ScoringError, f"scorer {scorer.name}"):
                result = await run_scorer(scorer, answer, truth, config, deadline_seconds)
        except ScoringError as error:
            failure = failure or f"{scorer.name}: {error}"
        else:
            best = result if best is None or result.value > best.value else best
            if best.value >= 1.0:
                break
    if best is None or (failure and best.value < 1.0):
        return Score(value=None, reason=failure, scorer=scorer.name)
    return Score(value=best.value, detail=best.detail, scorer=scorer.name)


async def run_scorer(scorer: Scorer, answer: str, truth: Truth, config: Mapping[str, Any], seconds: float) -> Result:
    if scorer.place is Place.MATH:
        return await run_math(answer, str(truth), seconds)
    if scorer.place is Place.WORKER:
        return await run_in_worker(scorer.path, answer, truth, config, seconds)
    assert scorer.function is not None, scorer
    if scorer.place is Place.HERE:
        return read_result(call_scorer(scorer.function, answer, truth, config))
    if scorer.place is Place.LOOP:
        return await run_in_loop(call_scorer(scorer.function, answer, truth, config), seconds)
    return await run_in_thread(scorer, answer, truth, config, seconds)


async def run_math(answer: str, truth: str, seconds: float) -> Result:
    """1 or 0. An answer whose comparison had to be given up is not shown to be right: 0, and ``undecided`` says why.

    A comparison that only got too little of a busy machine is unscored instead.
    """
    equality = compare_here(answer, truth)
    if equality is None:
        job = algebra_job(answer, truth, min(COMPARE_SECONDS, seconds))
        try:
            equal, undecided = await asyncio.wrap_future(shared_pool("math").submit(job))
            equality = Equality(equal=equal, undecided=undecided)
        except (JobTimedOut, WorkerEnded, JobCrashed) as error:
            if isinstance(error, JobTimedOut) and error.starved:
                raise
            equality = Equality(equal=False, undecided=str(error))
    return Result(value=float(equality.equal), detail={"undecided": equality.undecided} if equality.undecided else {})


async def run_in_worker(path: str, answer: str, truth: Truth, config: Mapping[str, Any], seconds: float) -> Result:
    job = Job(
        targets=("agentrl.scoring.calls:score_in_worker", path),
        arguments=(path, answer, truth["answer"], truth["query"], truth["metadata"], dict(config)),
        deadline_seconds=seconds,
    )
    reply = await asyncio.wrap_future(shared_pool("scorers").submit(job))
    if "unusable" in reply:
        raise ScoringError(reply["unusable"])
    return Result(value=reply["value"], detail=reply["detail"])


async def run_in_loop(awaitable: Any, seconds: float) -> Result:
    task = asyncio.ensure_future(awaitable)
    try:
        finished, _ = await asyncio.wait([task], timeout=seconds)
    finally:
        task.cancel()
    if not finished:
        raise JobTimedOut(f"did not finish within {seconds:g} s; it was cancelled")
    return read_result(task.result())


async def run_in_thread(scorer: Scorer, answer: str, truth: Truth, config: Mapping[str, Any], seconds: float) -> Result:
    """For functions no other process can import. Past its deadline the thread is left alone: it cannot be stopped."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error else done.set_result(value)

    def work() -> None:
        value, failure = None, None
        try:
            value = call_scorer(scorer.function, answer, truth, config) if scorer.function else None
            if inspect.isawaitable(value):
                value = asyncio.run(finish(value))
        # The thread's only way to report; SystemExit and StopIteration cannot travel through a future.
        except BaseException as error:
            failure = JobCrashed(f"{type(error).__name__}: {error}")
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, value, failure)

    threading.Thread(target=work, daemon=True, name=f"scorer {scorer.name}").start()
    finished, _ = await asyncio.wait([done], timeout=seconds)
    if not finished:
        raise JobTimedOut(f"did not finish within {seconds:g} s; its thread was left behind")
    return read_result(done.result())
