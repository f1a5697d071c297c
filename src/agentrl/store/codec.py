"""Documents <-> what a backend can hold: plain JSON, packed ids, raw float32 log-probs.

Normalised before any backend, so that all of them answer alike: integers beyond 64 bits become decimal strings, NaN
and infinities become ``"NaN"``, ``"Infinity"``, ``"-Infinity"``, lone surrogates become ``\\udXXX`` text, keys become
strings, tuples and sets become lists (sets sorted).
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from agentrl.errors import StoreError
from agentrl.types import (
    CallStatus,
    DBRecordData,
    DispatchedSamplingTask,
    Flag,
    GroupVerdict,
    InferenceService,
    Reply,
    ResultStatus,
    Sampling,
    Score,
    ServiceStatus,
    Task,
    TaskStatus,
    Timings,
    ToolCall,
    ToolResult,
    TurnSpan,
    VersionSpan,
    WeightVersion,
)

MAX_DOCUMENT_BYTES = 16 * 1024 * 1024
"""The smallest limit of the backends, so that a document one of them takes is taken by all."""

AS_IT_IS, COMPRESSED = b"\0", b"\1"
"""First byte of packed integers: whether zlib follows."""

COMPRESSED_FROM_BYTES = 2048
"""Shorter arrays are not worth it: setting up zlib costs more than it saves, and every call gives up the GIL."""

INT64 = range(-(2**63), 2**63)


def text(value: str) -> str:
    """``value`` with lone surrogates spelled out, so that it has a UTF-8 form."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


class NotPlain(Exception):
    """A value that is no JSON type; where it lies is looked for only then."""


def plain(value: Any, where: str = "document") -> Any:
    """``value`` as JSON types, normalised as the module says; anything else is refused with its place."""
    try:
        return normalised(value)
    except NotPlain:
        place, kind = first_unplain(value, where)
        raise StoreError(f"{place} is a {kind}; a document holds only JSON types") from None


def normalised(value: Any) -> Any:
    """The common types come first and by identity: every turn of every episode passes here."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else text(value)
    if value is None or kind is bool:
        return value
    if kind is int:
        return value if value in INT64 else str(value)
    if kind is float:
        return number(value)
    if kind is dict:
        return {key_text(key): normalised(item) for key, item in value.items()}
    if kind is tuple or kind is list:
        return [normalised(item) for item in value]
    if (names := field_names(kind)) is not None:
        return {name: normalised(getattr(value, name)) for name in names}
    return normalised(as_common_type(value))


def as_common_type(value: Any) -> Any:
    """Subclasses of the JSON types (enumerations, numpy floats), other mappings, sets and arrays."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(map(normalised, value), key=str)
    if isinstance(value, (list, tuple, array)):
        return list(value)
    raise NotPlain


def first_unplain(value: Any, where: str) -> tuple[str, str]:
    """Place and type of the first value under ``value`` that has no JSON form."""
    if isinstance(value, Mapping):
        parts = [(item, f"{where}.{key_text(key)}") for key, item in value.items()]
    elif (names := field_names(type(value))) is not None:
        parts = [(getattr(value, name), f"{where}.{name}") for name in names]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = [(item, f"{where}[{i}]") for i, item in enumerate(value)]
    else:
        return where, type(value).__name__
    for item, place in parts:
        try:
            normalised(item)
        except NotPlain:
            return first_unplain(item, place)
    return where, type(value).__name__


@cache
def field_names(kind: type) -> tuple[str, ...] | None:
    """Of a dataclass; None for other types."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def key_text(key: Any) -> str:
    if isinstance(key, str):
        return text(str(key))
    return json.dumps(key) if key is None or isinstance(key, (bool, float)) else text(str(key))


def dumps(value: Any, where: str = "document") -> str:
    return json.dumps(plain(value, where), ensure_ascii=False, separators=(",", ":"))


def check_size(where: str, *parts: str | bytes) -> None:
    size = sum(len(part) if isinstance(part, bytes) else len(part.encode()) for part in parts)
    if size > MAX_DOCUMENT_BYTES:
        raise StoreError(
            f"{where} has {size:,} bytes, more than the {MAX_DOCUMENT_BYTES:,} a document may have; "
            "shorten tool results (--tool_result_limit) or the context (--max_prompt_tokens)"
        )


def pack_ints(values: Sequence[int], where: str, code: str = "i") -> bytes:
    """Little-endian int32 (``i``) or int8 (``b``); long arrays compressed, in planes: all lowest bytes first.

    Planes compress better and in half the time: the high bytes of token ids are nearly all the same.
    """
    try:
        numbers = array(code, values)
    except (OverflowError, TypeError) as error:
        raise StoreError(
            f"{where}: expected integers that fit {'int32' if code == 'i' else 'int8'} ({error})"
        ) from error
    raw, width = little_endian(numbers), numbers.itemsize
    if len(raw) < COMPRESSED_FROM_BYTES:
        return AS_IT_IS + raw
    return COMPRESSED + zlib.compress(b"".join(raw[place::width] for place in range(width)), 1)


def unpack_ints(blob: bytes, code: str = "i") -> tuple[int, ...]:
    if blob[:1] == AS_IT_IS:
        return tuple(from_little_endian(code, blob[1:]))
    planes, width = zlib.decompress(blob[1:]), array(code).itemsize
    count = len(planes) // width
    raw = bytearray(len(planes))
    for place in range(width):
        raw[place::width] = planes[place * count : (place + 1) * count]
    return tuple(from_little_endian(code, bytes(raw)))


def pack_floats(values: Sequence[float], where: str) -> bytes:
    """Floats as raw little-endian float32; log-probs do not compress."""
    try:
        return little_endian(array("f", values))
    except TypeError as error:
        raise StoreError(f"{where}: expected numbers ({error})") from error


def unpack_floats(blob: bytes) -> tuple[float, ...]:
    return tuple(from_little_endian("f", blob))


def little_endian(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def from_little_endian(code: str, blob: bytes) -> array[Any]:
    values = array(code)
    values.frombytes(blob)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def without(document: Any, names: Iterable[str]) -> dict[str, Any]:
    """Fields of a dataclass that have no column of their own."""
    return {name: getattr(document, name) for name in field_names(type(document)) or () if name not in names}


# --- Documents whose fields are themselves documents -----------------------------------------------------------------


def task_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``Task`` from its JSON part."""
    as_tuple = {name: optional_tuple(document[name]) for name in ("messages", "tools")}
    return {**document, **as_tuple, "setup": tuple(document["setup"])}


def optional_tuple(value: list[Any] | None) -> tuple[Any, ...] | None:
    return None if value is None else tuple(value)


def score(document: Mapping[str, Any]) -> Score:
    value = document["value"]
    return Score(**{**document, "value": None if value is None else float(value)})


def call(document: Mapping[str, Any]) -> ToolCall:
    return ToolCall(**{**document, "status": CallStatus(document["status"])})


def result(document: Mapping[str, Any]) -> ToolResult:
    return ToolResult(**{**document, "status": ResultStatus(document["status"])})


def reply(document: Mapping[str, Any]) -> Reply:
    return Reply(**{**document, "calls": tuple(map(call, document["calls"]))})


def sampling(document: Mapping[str, Any]) -> Sampling:
    return Sampling(**{**document, "stop_token_ids": tuple(document["stop_token_ids"])})


def timings(document: Mapping[str, Any]) -> Timings:
    """Those of a document written before there were any are zero."""
    return Timings(**document.get("timings", {}))


def turn_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``DispatchedSamplingTask`` from its JSON part."""
    return {
        **document,
        "version_spans": tuple(VersionSpan(**span) for span in document["version_spans"]),
        "sampling": sampling(document["sampling"]),
        "new_messages": tuple(document["new_messages"]),
        "reply": reply(document["reply"]),
        "tool_results": tuple(map(result, document["tool_results"])),
        "flags": frozenset(map(Flag, document["flags"])),
        "timings": timings(document),
    }


def turn_spans(documents: Sequence[Mapping[str, Any]]) -> tuple[TurnSpan, ...]:
    return tuple(TurnSpan(**document) for document in documents)


def version(document: Mapping[str, Any]) -> WeightVersion:
    return WeightVersion(**{**document, "engines": tuple(document["engines"])})


def service(document: Mapping[str, Any]) -> InferenceService:
    return InferenceService(**{**document, "status": ServiceStatus(document["status"])})


def verdict_text(verdict: GroupVerdict, where: str) -> str:
    return dumps({**without(verdict, ("slots",)), "slots": sorted(verdict.slots.items())}, where)


def verdict(document: Mapping[str, Any]) -> GroupVerdict:
    slots = {slot: value for slot, value in document["slots"]}
    return GroupVerdict(
        slots=slots, status=TaskStatus(document["status"]), reason=document["reason"], timings=timings(document)
    )


# --- Refusals that protect training ----------------------------------------------------------------------------------


def check_turn(turn: DispatchedSamplingTask, task: Task) -> None:
    if not turn.record.startswith(f"{task.id}/"):
        raise StoreError(f"turn {turn.id} is not of the claimed task {task.id}")
    if turn.logprobs and len(turn.logprobs) != len(turn.token_ids):
        raise StoreError(f"turn {turn.id}: {len(turn.token_ids)} sampled ids but {len(turn.logprobs)} log-probs")


def check_row(row: DBRecordData, task: Task) -> None:
    if row.task != task.id:
        raise StoreError(f"row {row.id} is of task {row.task}, not of the claimed task {task.id}")
    lengths = {
        "token_ids": len(row.token_ids),
        "mask": len(row.mask),
        "behavior_logprobs": len(row.behavior_logprobs),
        "versions": len(row.versions),
    }
    if len(set(lengths.values())) > 1:
        raise StoreError(f"row {row.id}: lengths differ: {lengths}")
    if not all(math.isfinite(span.advantage) for span in row.turns):
        raise StoreError(f"row {row.id}: an advantage is not finite: {[span.advantage for span in row.turns]}")


def check_verdict(verdict: GroupVerdict, rows: Sequence[DBRecordData], task: Task) -> None:
    """Slots exist, advantages are finite, the status ends the group, rows belong to trained slots of a train group."""
    if verdict.status not in (TaskStatus.COMPLETED, TaskStatus.ABANDONED):
        raise StoreError(f"verdict of {task.id} has status {verdict.status}; a group ends completed or abandoned")
    for slot, value in verdict.slots.items():
        if not 0 <= slot < task.num_slots:
            raise StoreError(f"verdict of {task.id} names slot {slot}; the group has slots 0 to {task.num_slots - 1}")
        if not isinstance(value, str) and not math.isfinite(value):
            raise StoreError(f"verdict of {task.id}: the advantage of slot {slot} is {value}; it has to be finite")
    if not rows:
        return
    if task.split != "train":
        raise StoreError(f"{task.id} is of split {task.split}; only groups of the train split have rows")
    if verdict.status is TaskStatus.ABANDONED:
        raise StoreError(f"{task.id} is abandoned ({verdict.reason}) and cannot have {len(rows)} rows")
    if len({row.id for row in rows}) < len(rows):
        raise StoreError(f"{task.id}: two rows of one record among {[row.id for row in rows]}")
    for row in rows:
        check_row(row, task)
        if not isinstance(verdict.slots.get(row.slot), (int, float)):
            raise StoreError(
                f"row {row.id}: the verdict of slot {row.slot} is {verdict.slots.get(row.slot)!r}, no advantage"
            )
