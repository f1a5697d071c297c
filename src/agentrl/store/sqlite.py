"""The SQLite backend: one file, one writer thread with group commit, reads as short snapshots on a second thread.

WAL with ``synchronous = NORMAL``: a killed process loses nothing it was told is written; a power cut may lose the last
moments, never the file.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from agentrl.errors import ConfigError, StoreError
from agentrl.store import aside, codec, counters, documents, inventory, leases, records, refills, registry, steps
from agentrl.store.base import (
    LEASE_SECONDS,
    MAX_ATTEMPTS,
    Admission,
    PassRate,
    QueueCounts,
    RunningGroup,
    Taken,
    TakeRule,
)
from agentrl.store.failures import explained
from agentrl.store.leases import Lease
from agentrl.store.schema import BUSY_SECONDS, connect
from agentrl.store.writer import Writer
from agentrl.types import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    GroupVerdict,
    InferenceService,
    Record,
    RecordStatus,
    RowStatus,
    Split,
    Task,
    WeightVersion,
    Worker,
)

T = TypeVar("T")


class SqliteStore:
    """``Store`` on one SQLite file. ``clock`` gives seconds since the epoch, the same for all processes of the host.

    ``read_only`` opens an existing file to look at; every write of it raises ``StoreError``.
    """

    def __init__(
        self,
        path: Path,
        *,
        run: str,
        lease_seconds: float = LEASE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
        clock: Callable[[], float] = time.time,
        read_only: bool = False,
    ) -> None:
        self.run = codec.text(run)
        self.path = path
        self.lease_seconds = lease_seconds
        self.max_attempts = max_attempts
        self._clock = clock
        self._read_only = read_only
        self._writer = Writer(path)
        self._reader: ThreadPoolExecutor | None = None
        self._snapshots: sqlite3.Connection | None = None
        self._aged = {"worker": self._worker, "service": self._service}

    async def open(self) -> None:
        if self._reader is not None:
            return
        if not self._read_only:
            await self._writer.open()
            await self._refuse_dropping()
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store-reader")

    async def _refuse_dropping(self) -> None:
        try:
            await self._write(lambda db: inventory.refuse_dropping(db, self.path, self.run))
        except ConfigError:
            await self._writer.close()
            raise

    async def close(self) -> None:
        """Commit what is queued and end both threads. A closed store may be opened again."""
        reader, self._reader = self._reader, None
        await self._writer.close()
        if reader is not None:
            await asyncio.get_running_loop().run_in_executor(reader, self._close_snapshots)
            reader.shutdown()

    # --- Samplers ----------------------------------------------------------------------------------------------------

    async def add_tasks(self, tasks: Sequence[Task]) -> int:
        for task in tasks:
            if task.run not in ("", self.run):
                raise StoreError(f"task {task.task_id} is of run {task.run!r}; this store writes run {self.run!r}")
        own = [replace(task, run=self.run, task_id=codec.text(task.task_id)) for task in tasks]
        packed = [(task, documents.task_text(task)) for task in own]
        return await self._write(lambda db: registry.add_tasks(db, self.run, packed, self._clock()))

    async def claim(self, worker: str, *, splits: Sequence[Split], admission: Admission | None = None) -> Claim | None:
        def statement(db: sqlite3.Connection) -> Claim | None:
            now = self._clock()
            registry.note_claimer(db, self.run, worker, now)
            found = leases.claim(
                db,
                run=self.run,
                worker=worker,
                splits=splits,
                admission=admission,
                now=now,
                lease_seconds=self.lease_seconds,
                max_attempts=self.max_attempts,
            )
            return found and documents.claim(*found, worker)

        answer = self._writer.submit(statement)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            answer.add_done_callback(self._give_back)
            raise

    def _give_back(self, answer: asyncio.Future[Claim | None]) -> None:
        """Its caller was cancelled while it waited: a claim nobody holds would live as long as the worker does."""
        if answer.cancelled() or answer.exception() is not None or (claim := answer.result()) is None:
            return
        lease = self._lease(claim)
        with contextlib.suppress(StoreError):  # closed meanwhile: the group is left to the lease rule
            self._writer.submit(lambda db: leases.release(db, lease)).add_done_callback(retrieve)

    async def append_turn(self, claim: Claim, turn: DispatchedSamplingTask) -> None:
        codec.check_turn(turn, claim.task)
        place = documents.place_of(turn.record, claim.task)
        lease, packed = self._lease(claim), documents.turn_columns(turn)
        await self._write(lambda db: records.append_turn(db, lease, turn, place, packed))

    async def finish_record(self, claim: Claim, record: Record) -> None:
        if record.task != claim.task.id or not 0 <= record.slot < claim.task.num_slots:
            raise StoreError(f"record {record.id} is of no slot of the claimed task {claim.task.id}")
        if record.status is RecordStatus.RUNNING:
            raise StoreError(f"record {record.id} is still running; finish_record stores terminal records")
        lease, doc = self._lease(claim), documents.record_text(record)
        lost = await self._write(lambda db: records.finish_record(db, lease, record, doc))
        if lost is not None:
            raise lost

    async def finalize_group(self, claim: Claim, verdict: GroupVerdict, rows: Sequence[DBRecordData]) -> bool:
        codec.check_verdict(verdict, rows, claim.task)
        lease, text = self._lease(claim), codec.verdict_text(verdict, f"verdict of {claim.task.id}")
        packed = await self._off_loop(lambda: [(row, documents.data_row_columns(row)) for row in rows])
        return await self._write(lambda db: records.finalize_group(db, lease, verdict, text, packed))

    async def set_aside(self, split: Split, reason: str) -> int:
        text = codec.text(reason)
        return await self._write(lambda db: aside.set_aside(db, self.run, str(split), text, self._clock()))

    async def take_back(self, split: Split, reason: str) -> int:
        text = codec.text(reason)
        return await self._write(lambda db: aside.take_back(db, self.run, str(split), text, self._clock()))

    async def release(self, claim: Claim) -> None:
        lease = self._lease(claim)
        await self._write(lambda db: leases.release(db, lease))

    # --- The trainer -------------------------------------------------------------------------------------------------

    async def take(self, rule: TakeRule) -> Taken | None:
        if rule.num_groups < 1:
            raise StoreError(f"step {rule.step} takes {rule.num_groups} groups; it has to take at least 1")
        taken = await self._write(lambda db: steps.take(db, self.run, rule, self._clock(), self.max_attempts))
        return await self._read(lambda db: self._taken(db, rule)) if taken else None

    def _taken(self, db: sqlite3.Connection, rule: TakeRule) -> Taken:
        rows = tuple(documents.data_row(row) for row in steps.rows_of_step(db, self.run, rule.step))
        return Taken(
            step=rule.step,
            rows=rows,
            num_groups=len({row.task for row in rows}),
            dropped=steps.dropped_at(db, self.run, rule.step),
            **refills.of_step(db, self.run, rule.step),
            end_of_stream=steps.nothing_follows(db, self.run, rule),
        )

    async def ack(self, step: int) -> int:
        return await self._write(lambda db: steps.ack(db, self.run, step, self._clock()))

    async def drop(self, rows: Sequence[str], reason: str) -> int:
        return await self._write(lambda db: steps.drop(db, self.run, rows, codec.text(reason), self._clock()))

    async def rewind(self, step: int, version: int) -> Mapping[str, int]:
        return await self._write(lambda db: steps.rewind(db, self.run, step, version, self._clock(), self.max_attempts))

    # --- Versions, workers, services, state --------------------------------------------------------------------------

    async def publish_version(self, version: WeightVersion) -> None:
        """Put ``version`` in force. A number published before has to be the same weights: same step, same parent."""
        doc = codec.dumps(version, f"version {version.version}")
        await self._write(lambda db: registry.publish_version(db, self.run, version, doc, self._clock()))

    async def latest_version(self) -> WeightVersion | None:
        row = await self._read(lambda db: registry.latest_version(db, self.run))
        return None if row is None else documents.version(row)

    async def next_version(self) -> int:
        return await self._read(lambda db: registry.next_version(db, self.run))

    async def heartbeat(self, worker: Worker) -> None:
        """Keep the leases of ``worker``. A new process under an old id begins without the leases of the old one."""
        await self._write(lambda db: registry.heartbeat(db, self.run, worker, self._clock()))

    async def workers(self) -> list[Worker]:
        return await self.find("worker")

    async def leave(self, worker: str) -> None:
        await self._write(lambda db: registry.leave(db, self.run, worker, self._clock()))

    async def expire_dead_workers(self, host: str) -> list[str]:
        return await self._write(
            lambda db: registry.expire_dead_workers(db, self.run, host, self._clock(), self.lease_seconds)
        )

    async def put_service(self, service: InferenceService) -> None:
        doc = documents.service_text(service)
        await self._write(lambda db: registry.put_service(db, self.run, service, doc, self._clock()))

    async def services(self) -> list[InferenceService]:
        return await self.find("service")

    async def set_state(self, key: str, value: Any) -> None:
        text = codec.dumps(value, f"state {key}")
        codec.check_size(f"state {key}", text)
        await self._write(lambda db: registry.set_state(db, self.run, f"state/{key}", text, self._clock()))

    async def get_state(self, key: str) -> Any | None:
        text = await self._read(lambda db: registry.get_state(db, self.run, f"state/{key}"))
        return None if text is None else json.loads(text)

    async def keep_state(self, key: str, value: Any) -> Any:
        text = codec.dumps(value, f"state {key}")
        codec.check_size(f"state {key}", text)
        kept = await self._write(lambda db: registry.keep_state(db, self.run, f"state/{key}", text, self._clock()))
        return json.loads(kept)

    async def end_stream(self, split: Split) -> None:
        """Pushing new tasks of the split later opens the stream again."""
        key = f"{steps.END_OF_STREAM}{split}"
        await self._write(lambda db: registry.set_state(db, self.run, key, "true", self._clock()))

    async def reopen_stream(self, split: Split) -> None:
        key = f"{steps.END_OF_STREAM}{split}"
        await self._write(lambda db: registry.forget_state(db, self.run, key))

    async def stream_ended(self, split: Split) -> bool:
        key = f"{steps.END_OF_STREAM}{split}"
        return await self._read(lambda db: registry.get_state(db, self.run, key)) is not None

    # --- Counts ------------------------------------------------------------------------------------------------------

    async def queue(self, split: Split) -> QueueCounts:
        return await self._read(lambda db: counters.queue(db, self.run, str(split)))

    async def running_groups(self) -> list[RunningGroup]:
        return await self._read(lambda db: leases.running_groups(db, self.run, self._clock()))

    async def pass_rates(self) -> Mapping[str, PassRate]:
        return await self._read(lambda db: counters.pass_rates(db, self.run))

    async def spend(self, amounts: Mapping[str, float]) -> None:
        for name, amount in amounts.items():
            if not (amount >= 0 and math.isfinite(amount)):
                raise StoreError(f"{amount!r} {name} cannot be spent: an amount is finite and not negative")
        await self._write(lambda db: counters.spend(db, self.run, amounts))

    async def spending(self) -> Mapping[str, float]:
        return await self._read(lambda db: counters.spending(db, self.run))

    # --- Looking -----------------------------------------------------------------------------------------------------

    async def find(self, kind: str, /, **where: Any) -> list[Any]:
        found = documents.kind(kind)
        in_sql, by_value = documents.split_filters(found, where)
        query = f"SELECT * FROM {found.table} WHERE run = :run_name{documents.condition(in_sql)} ORDER BY {found.order}"

        def snapshot(db: sqlite3.Connection) -> list[Any]:
            decode = found.decode or self._aged[kind]
            decoded = [decode(row) for row in db.execute(query, in_sql | {"run_name": self.run})]
            return [each for each in decoded if all(getattr(each, name) == value for name, value in by_value.items())]

        return await self._read(snapshot)

    async def count(self, kind: str, /, **where: Any) -> int:
        found = documents.kind(kind)
        in_sql, by_value = documents.split_filters(found, where)
        if by_value:
            return len(await self.find(kind, **where))
        query = f"SELECT count(*) FROM {found.table} WHERE run = :run_name{documents.condition(in_sql)}"
        return await self._read(lambda db: db.execute(query, in_sql | {"run_name": self.run}).fetchone()[0])

    async def row_states(self, task: str | None = None) -> list[tuple[str, RowStatus, int | None, str]]:
        """(row id, status, step, reason) of every row ever made, in order of creation."""
        rows = await self._read(lambda db: registry.row_states(db, self.run, task))
        return [(row["record"], RowStatus(row["status"]), row["step"], row["reason"]) for row in rows]

    async def verdict(self, task: str) -> GroupVerdict | None:
        text = await self._read(lambda db: registry.verdict(db, self.run, codec.text(task)))
        return None if text is None else codec.verdict(json.loads(text))

    # --- Threads -----------------------------------------------------------------------------------------------------

    def _lease(self, claim: Claim) -> Lease:
        if claim.task.run != self.run:
            raise StoreError(
                f"{claim.task.id} is a claim of run {claim.task.run!r}; this store writes run {self.run!r}"
            )
        return Lease(run=self.run, task=claim.task.id, claim_no=claim.claim_no, now=self._clock())

    def _worker(self, row: sqlite3.Row) -> Worker:
        return documents.worker(row, self._clock(), self.lease_seconds)

    def _service(self, row: sqlite3.Row) -> InferenceService:
        return documents.service(row, self._clock())

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Packing the rows of a long group would hold up every episode of the process."""
        return await asyncio.to_thread(work)

    async def _write(self, statement: Callable[[sqlite3.Connection], T]) -> T:
        if self._read_only:
            raise StoreError(f"the store {self.path} is open to look at only")
        return await self._writer.submit(statement)

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        if self._reader is None:
            raise StoreError(f"the store {self.path} is not open")
        return await asyncio.get_running_loop().run_in_executor(self._reader, self._in_snapshot, query)

    def _in_snapshot(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._snapshots is None:
                self._snapshots = connect(self.path, read_only=True)
            self._snapshots.execute("BEGIN")
            try:
                return query(self._snapshots)
            finally:
                self._snapshots.execute("COMMIT")
        except sqlite3.Error as error:
            raise StoreError(explained(self.path, error, busy_seconds=BUSY_SECONDS)) from error

    def _close_snapshots(self) -> None:
        if self._snapshots is not None:
            self._snapshots.close()
            self._snapshots = None


def retrieve(answer: asyncio.Future[Any]) -> None:
    """Nobody waits for the answer; a failed release leaves the group to the lease rule."""
    if not answer.cancelled():
        answer.exception()
