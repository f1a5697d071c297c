"""Calling a scorer function and reading what it returned; the same code here and in the worker."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentrl.errors import ScoringError
from agentrl.scoring.imports import resolve
from agentrl.scoring.truth import Truth

ScorerFunction = Callable[..., Any]
"""Sync or async, ``(answer, truth)`` or ``(answer, truth, config)`` -> float, bool, or a mapping with ``score``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    value: float
    detail: Mapping[str, Any] = field(default_factory=dict)


def takes_config(function: ScorerFunction) -> bool:
    """Whether ``function`` wants the third argument. Raise ``TypeError`` when it can take neither two nor three."""
    signature = inspect.signature(function)
    for count in (3, 2):
        try:
            signature.bind(*[None] * count)
        except TypeError:
            continue
        return count == 3
    raise TypeError(f"takes {signature}; a scorer takes (answer, truth) or (answer, truth, config)")


def call_scorer(function: ScorerFunction, answer: str, truth: Truth, config: Mapping[str, Any]) -> Any:
    """What ``function`` returns; an awaitable when it is async."""
    return function(answer, truth, config) if takes_config(function) else function(answer, truth)


def read_result(returned: Any) -> Result:
    """Raise ``ScoringError`` for anything that is not a finite number, alone or as ``score`` of a mapping."""
    if isinstance(returned, Mapping):
        if "score" not in returned:
            raise ScoringError(f"the scorer returned a mapping without 'score': {sorted(map(str, returned))}")
        detail = {str(key): value for key, value in returned.items() if key != "score"}
        return Result(value=read_number(returned["score"]), detail=detail)
    return Result(value=read_number(returned))


def read_number(returned: Any) -> float:
    plain = returned.item() if hasattr(returned, "item") and getattr(returned, "shape", None) == () else returned
    if not isinstance(plain, bool | int | float):
        raise ScoringError(f"the scorer returned {returned!r:.200} ({type(returned).__name__}), not a number")
    if not math.isfinite(plain):
        raise ScoringError(f"the scorer returned {plain}")
    return float(plain)


def score_in_worker(
    path: str, answer: str, truth: Any, query: str, metadata: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Called in the worker: ``value`` and ``detail``, or ``unusable`` with the reason."""
    returned = call_scorer(resolve(path), answer, Truth(truth, query=query, metadata=metadata), config)
    if inspect.isawaitable(returned):
        returned = asyncio.run(finish(returned))
    try:
        result = read_result(returned)
    except ScoringError as error:
        return {"unusable": str(error)}
    return {"value": result.value, "detail": dict(result.detail)}


async def finish(awaitable: Any) -> Any:
    return await awaitable
