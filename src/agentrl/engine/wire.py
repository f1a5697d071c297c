"""What engine client and server say to each other, as JSON; everything read from the wire is checked here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from agentrl.engine.base import Canary, Confirmation, EngineHealth
from agentrl.types import Completion, Sampling, VersionSpan

CONTEXT_TOO_LONG = "context_too_long"
BAD_SAMPLING = "bad_sampling"
BAD_REQUEST = "bad_request"
WEIGHTS_REFUSED = "weights_refused"
ENGINE_ERROR = "engine_error"
UNAVAILABLE = "unavailable"
DEADLINE = "deadline"


class WireError(ValueError):
    """A message is not what it should be; ``kind`` is the ``type`` of the error answer."""

    def __init__(self, message: str, kind: str = BAD_REQUEST) -> None:
        super().__init__(message)
        self.kind = kind


# --- Requests ----------------------------------------------------------------------------------------------------


def all_of(*readers: Callable[[], Any]) -> list[Any]:
    """What ``readers`` return; one ``WireError`` that names everything they refuse."""
    values, refused = [], []
    for read in readers:
        try:
            values.append(read())
        except WireError as error:
            refused.append(error)
    if refused:
        kinds = {error.kind for error in refused}
        raise WireError("; ".join(map(str, refused)), kinds.pop() if len(kinds) == 1 else BAD_REQUEST)
    return values


def token_ids_from(value: Any, name: str = "token_ids") -> list[int]:
    if value is None:
        raise WireError(f"{name} is missing: a list of at least one token id")
    if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
        raise WireError(f"{name} must be a list of at least one token id (integers >= 0)")
    return value


def sampling_from(value: Any) -> Sampling:
    """Refuses names it does not know: what would change the distribution but not the log-probs is never ignored."""
    if value is None:
        raise WireError("sampling is missing", BAD_SAMPLING)
    if not isinstance(value, dict):
        raise WireError("sampling must be an object", BAD_SAMPLING)
    known = {field.name for field in fields(Sampling)}
    unknown = sorted(set(value) - known)
    stop = value.get("stop_token_ids") or ()
    listed = isinstance(stop, list | tuple)
    given = {name: seen for name, seen in value.items() if name in known}
    sampling = Sampling(**{"max_new_tokens": 1, **given, "stop_token_ids": tuple(stop) if listed else ()})
    problems = [
        f"{', '.join(unknown)} is not supported; known: {sorted(known)}" if unknown else "",
        "" if "max_new_tokens" in value else "max_new_tokens is missing",
        "" if listed else f"stop_token_ids is {stop!r}, expected a list of integers >= 0",
        *sampling_problems(sampling),
    ]
    if any(problems):
        raise WireError("; ".join(f"sampling.{problem}" for problem in problems if problem), BAD_SAMPLING)
    return sampling


def sampling_problems(sampling: Sampling) -> list[str]:
    """Which values are out of range, and what is expected."""
    checks = (
        ("max_new_tokens", sampling.max_new_tokens, is_int(sampling.max_new_tokens, 1), "an integer >= 1"),
        ("temperature", sampling.temperature, is_number(sampling.temperature, 0.0), "a finite number >= 0"),
        ("top_p", sampling.top_p, is_number(sampling.top_p, 0.0) and 0 < sampling.top_p <= 1, "in (0, 1]"),
        ("top_k", sampling.top_k, is_int(sampling.top_k, 0), "an integer >= 0"),
        ("seed", sampling.seed, sampling.seed is None or type(sampling.seed) is int, "an integer or null"),
        (
            "stop_token_ids",
            sampling.stop_token_ids,
            all(is_int(item, 0) for item in sampling.stop_token_ids),
            "a list of integers >= 0",
        ),
    )
    return [f"{name} is {seen!r}, expected {wanted}" for name, seen, fine, wanted in checks if not fine]


def version_from(value: Any) -> int:
    if not is_int(value, 0):
        raise WireError(f"version is {value!r}, expected an integer >= 0")
    return value


def path_from(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise WireError(f"path is {value!r}, expected the folder of the weights")
    return value


def canary_from(value: Any) -> Canary | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError("canary must be an object or null")
    ids = token_ids_from(value.get("token_ids"), "canary.token_ids")
    logprobs = value.get("logprobs")
    if not isinstance(logprobs, list) or not all(is_number(item) for item in logprobs):
        raise WireError("canary.logprobs must be a list of finite numbers")
    if len(logprobs) != len(ids) - 1:
        raise WireError(f"canary has {len(logprobs)} logprobs for {len(ids)} tokens; expected one less than tokens")
    if not is_number(value.get("tolerance"), 0.0):
        raise WireError("canary.tolerance must be a finite number >= 0")
    return Canary(token_ids=tuple(ids), logprobs=tuple(logprobs), tolerance=value["tolerance"])


def positive_from(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if value is None:
        raise WireError(f"{name} is missing: a finite number > 0")
    if not is_number(value, 0.0) or not value:
        raise WireError(f"{name} is {value!r}, expected a finite number > 0")
    return float(value)


def is_int(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def is_number(value: Any, least: float = -math.inf) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= least


# --- Answers -----------------------------------------------------------------------------------------------------


def completion_as_json(completion: Completion) -> dict[str, Any]:
    return {
        "token_ids": list(completion.token_ids),
        "logprobs": list(completion.logprobs),
        "version_spans": [[span.start, span.end, span.version] for span in completion.version_spans],
        "finish_reason": completion.finish_reason,
        "prompt_tokens": completion.prompt_tokens,
        "cached_tokens": completion.cached_tokens,
        "queue_seconds": completion.queue_seconds,
    }


def completion_from(body: Any, *, service: str, latency_seconds: float) -> Completion:
    """Raise ``WireError`` for anything training could not trust: no log-prob is ever made up."""
    if not isinstance(body, dict):
        raise WireError("the completion is not an object")
    ids = token_ids_from(body.get("token_ids"))
    logprobs = body.get("logprobs")
    if not isinstance(logprobs, list):
        raise WireError("the completion has no logprobs")
    if len(logprobs) != len(ids):
        raise WireError(f"the completion has {len(logprobs)} logprobs for {len(ids)} tokens")
    if not all(is_number(item) for item in logprobs):
        raise WireError("the completion has logprobs that are not finite numbers")
    if not isinstance(body.get("finish_reason"), str):
        raise WireError("the completion has no finish_reason")
    if not is_number(body.get("queue_seconds", 0.0), 0.0):
        raise WireError(f"queue_seconds is {body['queue_seconds']!r}, expected a number of seconds")
    return Completion(
        token_ids=ids,
        logprobs=logprobs,
        version_spans=spans_from(body.get("version_spans"), len(ids)),
        finish_reason=body["finish_reason"],
        prompt_tokens=body.get("prompt_tokens", 0),
        cached_tokens=body.get("cached_tokens", 0),
        service=service,
        latency_seconds=latency_seconds,
        queue_seconds=float(body.get("queue_seconds", 0.0)),
    )


def spans_from(value: Any, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Spans that follow each other from the first token to the last."""
    well_formed = isinstance(value, list) and all(
        isinstance(item, list) and len(item) == 3 and all(is_int(number, 0) for number in item) for item in value
    )
    if not well_formed:
        raise WireError("the completion has no version_spans [[start, end, version], ...]")
    at = 0
    for start, end, _ in value:
        if start != at or end <= start:
            raise WireError(f"version_spans {value} do not cover the {num_tokens} tokens one after the other")
        at = end
    if at != num_tokens:
        raise WireError(f"version_spans end at {at}, the completion has {num_tokens} tokens")
    return tuple(VersionSpan(start=start, end=end, version=version) for start, end, version in value)


def confirmation_as_json(confirmation: Confirmation) -> dict[str, Any]:
    return {"version": confirmation.version, "canary_difference": confirmation.canary_difference}


def confirmation_from(body: Any, *, url: str) -> Confirmation:
    if not isinstance(body, dict) or not is_int(body.get("version"), 0):
        raise WireError("the confirmation has no version")
    return Confirmation(url=url, version=body["version"], canary_difference=body.get("canary_difference"))


def health_as_json(health: EngineHealth) -> dict[str, Any]:
    return asdict(health)


def health_from(body: Any) -> EngineHealth:
    try:
        return EngineHealth(**body)
    except TypeError as error:
        raise WireError(f"the health answer is not one of ours: {error}") from error
