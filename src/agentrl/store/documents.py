"""Rows of the tables <-> the dataclasses of ``types``; ``find`` over both: columns by SQL, other fields by value."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from agentrl.errors import StoreError
from agentrl.store import codec
from agentrl.types import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    InferenceService,
    Outcome,
    Record,
    RecordStatus,
    Split,
    Task,
    TaskStatus,
    WeightVersion,
    Worker,
)

TASK_COLUMNS = ("run", "split", "epoch", "task_id", "num_slots", "seq", "status", "reason", "claim_no", "owner")
RECORD_COLUMNS = ("task", "slot", "attempt", "status", "reason", "outcome")
TURN_COLUMNS = ("record", "turn", "status", "prompt_ids_delta", "token_ids", "logprobs")


def task(row: sqlite3.Row) -> Task:
    columns = {name: row[name] for name in TASK_COLUMNS}
    columns |= {"split": Split(row["split"]), "status": TaskStatus(row["status"])}
    return Task(**columns, **codec.task_fields(json.loads(row["doc"])))


def task_text(document: Task) -> str:
    if document.num_slots < 1:
        raise StoreError(f"task {document.id} has {document.num_slots} slots; a group has at least 1")
    doc = codec.dumps(codec.without(document, TASK_COLUMNS), f"task {document.id}")
    codec.check_size(f"task {document.id}", doc)
    return doc


def record(row: sqlite3.Row) -> Record:
    columns = {name: row[name] for name in RECORD_COLUMNS}
    columns |= {"status": RecordStatus(row["status"]), "outcome": row["outcome"] and Outcome(row["outcome"])}
    document = json.loads(row["doc"])
    if "scores" in document:
        document["scores"] = tuple(map(codec.score, document["scores"]))
    return Record(**columns, **(document | {"timings": codec.timings(document)}))


def record_text(document: Record) -> str:
    doc = codec.dumps(codec.without(document, RECORD_COLUMNS), f"record {document.id}")
    codec.check_size(f"record {document.id}", doc)
    return doc


def place_of(record: str, task: Task) -> tuple[int, int]:
    """(slot, attempt) of a record id of ``task``."""
    slot, _, attempt = record.removeprefix(f"{task.id}/").partition("/")
    if not (slot.isdecimal() and attempt.isdecimal() and int(slot) < task.num_slots):
        raise StoreError(
            f"{record} is no record of {task.id}: expected {task.id}/SLOT/ATTEMPT, SLOT below {task.num_slots}"
        )
    return int(slot), int(attempt)


def turn(row: sqlite3.Row) -> DispatchedSamplingTask:
    return DispatchedSamplingTask(
        record=row["record"],
        turn=row["turn"],
        status=row["status"],
        prompt_ids_delta=codec.unpack_ints(row["prompt_ids"]),
        token_ids=codec.unpack_ints(row["token_ids"]),
        logprobs=codec.unpack_floats(row["logprobs"]),
        **codec.turn_fields(json.loads(row["doc"])),
    )


def turn_columns(document: DispatchedSamplingTask) -> tuple[str, bytes, bytes, bytes]:
    """doc, prompt_ids, token_ids, logprobs."""
    where = f"turn {document.id}"
    columns = (
        codec.dumps(codec.without(document, TURN_COLUMNS), where),
        codec.pack_ints(document.prompt_ids_delta, f"{where}.prompt_ids_delta"),
        codec.pack_ints(document.token_ids, f"{where}.token_ids"),
        codec.pack_floats(document.logprobs, f"{where}.logprobs"),
    )
    codec.check_size(where, *columns)
    return columns


def data_row(row: sqlite3.Row) -> DBRecordData:
    return DBRecordData(
        record=row["record"],
        task=row["task"],
        seq=row["seq"],
        slot=row["slot"],
        token_ids=codec.unpack_ints(row["token_ids"]),
        mask=codec.unpack_ints(row["mask"], "b"),
        behavior_logprobs=codec.unpack_floats(row["logprobs"]),
        versions=codec.unpack_ints(row["versions"]),
        turns=codec.turn_spans(json.loads(row["turns"])),
        start_version=row["start_version"],
        end_version=row["end_version"],
        reward=row["reward"],
        trained_count=row["trained_count"],
    )


def data_row_columns(document: DBRecordData) -> tuple[str, str, bytes, bytes, bytes, bytes]:
    """version_set, turns, token_ids, mask, versions, logprobs."""
    where = f"row {document.id}"
    versions = {*document.versions, document.start_version, document.end_version}
    columns = (
        json.dumps(sorted(int(version) for version in versions if version >= 0)),
        codec.dumps(document.turns, f"{where}.turns"),
        codec.pack_ints(document.token_ids, f"{where}.token_ids"),
        codec.pack_ints(document.mask, f"{where}.mask", "b"),
        codec.pack_ints(document.versions, f"{where}.versions"),
        codec.pack_floats(document.behavior_logprobs, f"{where}.behavior_logprobs"),
    )
    codec.check_size(where, *columns)
    return columns


def version(row: sqlite3.Row) -> WeightVersion:
    return codec.version({**json.loads(row["doc"]), "step": row["step"], "parent": row["parent"]})


def service(row: sqlite3.Row, now: float) -> InferenceService:
    found, beat = codec.service(json.loads(row["doc"])), row["updated_at"]
    return replace(found, beat=beat, age_seconds=now - beat)


def service_text(document: InferenceService) -> str:
    return codec.dumps(codec.without(document, ("beat", "age_seconds")), f"service {document.url}")


def worker(row: sqlite3.Row, now: float, lease_seconds: float) -> Worker:
    names = ("id", "kind", "host", "pid", "waiting_for", "deadline")
    age = now - row["heartbeat"]
    return Worker(
        **{name: row[name] for name in names}, alive=abs(age) < lease_seconds, age_seconds=age, beat=row["heartbeat"]
    )


def claim(row: sqlite3.Row, records: list[sqlite3.Row], worker: str) -> Claim:
    """``finished``: of each slot the terminal record of this round that is to be kept. ``next_attempt``: every slot."""
    finished: list[Record] = []
    next_attempt: dict[int, int] = {}
    for slot in range(row["num_slots"]):
        mine = [found for found in records if found["slot"] == slot]
        next_attempt[slot] = 1 + max((found["attempt"] for found in mine), default=-1)
        kept = kept_record([found for found in mine if found["round"] == row["round"]])
        finished += [] if kept is None else [record(kept)]
    return Claim(
        task=task(row), worker=worker, claim_no=row["claim_no"], finished=tuple(finished), next_attempt=next_attempt
    )


def kept_record(attempts: list[sqlite3.Row]) -> sqlite3.Row | None:
    """The last attempt if it is terminal; an earlier failed one is not: its owner had begun to repair it."""
    for found in reversed(attempts):
        if found["status"] in ("scored", "unscored", "abandoned") or (
            found is attempts[-1] and found["status"] == "failed"
        ):
            return found
    return None


# --- find ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """How documents of one kind are found. ``columns`` maps names a caller may use to columns of ``table``.

    ``decode`` is None where it takes the store's clock.
    """

    table: str
    document: type
    decode: Callable[[sqlite3.Row], Any] | None
    columns: Mapping[str, str]
    order: str = "n"


def same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


KINDS: dict[str, Kind] = {
    "task": Kind(table="task", document=Task, decode=task, columns=same("id", *TASK_COLUMNS), order="split, seq, n"),
    "record": Kind(table="record", document=Record, decode=record, columns=same("id", "claim_no", *RECORD_COLUMNS)),
    "turn": Kind(
        table="turn", document=DispatchedSamplingTask, decode=turn, columns=same("record", "turn", "status", "claim_no")
    ),
    "row": Kind(
        table="data_row",
        document=DBRecordData,
        decode=data_row,
        columns=same("record", "task", "seq", "slot", "status", "reason", "step", "start_version", "end_version")
        | same("reward", "trained_count")
        | {"id": "record"},
    ),
    "version": Kind(table="version", document=WeightVersion, decode=version, columns=same("version", "step", "parent")),
    "worker": Kind(
        table="worker",
        document=Worker,
        decode=None,
        columns=same("id", "kind", "host", "pid", "waiting_for", "deadline"),
    ),
    "service": Kind(table="service", document=InferenceService, decode=None, columns=same("url", "kind", "status")),
}


def kind(name: str) -> Kind:
    if name not in KINDS:
        raise StoreError(f"no documents of kind {name!r}; there are {', '.join(KINDS)}")
    return KINDS[name]


def split_filters(kind: Kind, where: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(column -> value for SQL, field -> value to compare decoded documents with)."""
    in_sql = {kind.columns[name]: codec.plain(value, name) for name, value in where.items() if name in kind.columns}
    by_value = {name: value for name, value in where.items() if name not in kind.columns}
    known = {field.name for field in fields(kind.document)}
    for name in by_value:
        if name not in known:
            raise StoreError(f"{kind.document.__name__} has no field {name!r}; it has {', '.join(sorted(known))}")
    return in_sql, by_value


def condition(in_sql: Mapping[str, Any]) -> str:
    return "".join(f" AND {column} IS :{column}" for column in in_sql)
