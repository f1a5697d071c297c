"""A group: the siblings of one task, played, scored and judged together by the owner of the claim."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.algo import GroupMember, judge_group, turn_advantages
from agentrl.batch import build_row
from agentrl.chat.base import Renderer
from agentrl.config import AlgoOptions, RolloutOptions
from agentrl.engine.base import TokenEngine
from agentrl.errors import GatewayError
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.episode import Episode, rollout
from agentrl.rollout.limits import Limits
from agentrl.rollout.pace import Pace
from agentrl.scoring import score_answer
from agentrl.store.base import Store
from agentrl.tasks import task_messages
from agentrl.telemetry import Stopwatch
from agentrl.tools.base import Toolset
from agentrl.types import (
    Claim,
    DBRecordData,
    DispatchedSamplingTask,
    GroupVerdict,
    Outcome,
    Record,
    RecordStatus,
    Sampling,
    Split,
    TaskStatus,
    Timings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRunner:
    """Everything a group needs; one per sampler process, shared by all groups."""

    store: Store
    engine: TokenEngine
    renderer: Renderer
    toolset: Toolset
    rollout_options: RolloutOptions
    algo_options: AlgoOptions
    pace: Pace
    servers: Sequence[str] | None = None
    default_prompt: bool = True
    seed: int = 0
    on_turn: Callable[[DispatchedSamplingTask], None] = field(default=lambda turn: None)
    on_record: Callable[[Record], None] = field(default=lambda record: None)
    on_group: Callable[[GroupVerdict], None] = field(default=lambda verdict: None)

    async def run(self, claim: Claim) -> GroupVerdict:
        """Play what is missing of the group, then judge and finalise it: one write that ends the task."""
        records = {record.slot: record for record in claim.finished}
        missing = [slot for slot in range(claim.task.num_slots) if slot not in records]
        records.update(await self._play(claim, missing))
        verdict, rows = await self._judge(claim, records)
        verdict = replace(verdict, timings=group_timings(claim, records))
        await self.store.finalize_group(claim, verdict, rows)
        self.on_group(verdict)
        return verdict

    async def _play(self, claim: Claim, slots: Sequence[int]) -> dict[int, Record]:
        """Run slots side by side; stragglers are abandoned ``group_deadline`` seconds after the first finish."""
        episodes: dict[int, Episode] = {}
        running = {asyncio.create_task(self._play_slot(claim, slot, episodes)): slot for slot in slots}
        try:
            done, late = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED) if running else (set(), set())
            if late and not any(task.exception() for task in done):
                more, late = await asyncio.wait(
                    late, timeout=self.rollout_options.group_deadline, return_when=asyncio.FIRST_EXCEPTION
                )
                done |= more
            records = {running[task]: task.result() for task in done}
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for slot in sorted(running[task] for task in late):
            records[slot] = await self._abandon(claim, episodes[slot], "group_deadline")
        return records

    async def _play_slot(self, claim: Claim, slot: int, episodes: dict[int, Episode]) -> Record:
        """Attempt a slot until its episode is not broken, at most ``max_attempts`` times.

        ``episodes`` shows the attempt in hand of every slot. Tools that are gone for good are no episode's doing.
        """
        task, attempt = claim.task, claim.next_attempt.get(slot, 0)
        while True:
            record = Record(task=task.id, slot=slot, attempt=attempt)
            episodes[slot] = Episode(record=record, schema=task.answer_schema)
            async with self.pace.episode():
                record = await self._play_once(claim, episodes[slot])
            broken = record.outcome is Outcome.ERROR
            if broken and self.toolset.failed.is_set():
                raise GatewayError(self.toolset.failure, where="tools")
            await self.store.finish_record(claim, record)
            self.on_record(record)
            attempt += 1
            if not broken or attempt >= self.rollout_options.max_attempts:
                self.pace.episode_finished(claim.id)
                return record

    async def _play_once(self, claim: Claim, episode: Episode) -> Record:
        task = claim.task
        tools = self.toolset.session(episode.record.id, allow=task.tools, servers=self.servers)

        async def sink(turn: DispatchedSamplingTask) -> None:
            await self.store.append_turn(claim, turn)
            self.on_turn(turn)

        try:
            record = await rollout(
                episode,
                task_messages(task, default_prompt=self.default_prompt),
                self.pace.counted(self.engine),
                tools,
                Conversation(self.renderer),
                Limits.from_options(self.rollout_options),
                self._sampling(claim, episode.record.slot),
                sink,
            )
        finally:
            await tools.close()
        return await self._score(claim, record) if record.outcome and record.outcome.valid else record

    async def _score(self, claim: Claim, record: Record) -> Record:
        task, watch = claim.task, Stopwatch()
        score = await score_answer(
            task.scorer,
            record.final_answer,
            task.answer,
            question=task.query,
            metadata=task.metadata,
            deadline_seconds=self.rollout_options.scorer_timeout,
        )
        record = replace(record, scores=(score,), timings=record.timings + Timings(score=watch.lap()))
        if score.value is None:
            return replace(record, status=RecordStatus.UNSCORED, reason=score.reason)
        return replace(record, status=RecordStatus.SCORED)

    async def _abandon(self, claim: Claim, episode: Episode, reason: str) -> Record:
        """What the episode did so far stays known; it has no score."""
        record = replace(episode.finish(Outcome.CANCELLED), status=RecordStatus.ABANDONED, reason=reason)
        await self.store.finish_record(claim, record)
        self.on_record(record)
        return record

    async def _judge(self, claim: Claim, records: Mapping[int, Record]) -> tuple[GroupVerdict, list[DBRecordData]]:
        """Verdict over the whole group, and the rows it makes trainable (none outside the train split)."""
        members = [
            GroupMember(slot=slot, score=trusted_score(record), num_turns=record.num_turns)
            for slot, record in sorted(records.items())
        ]
        if claim.task.split is not Split.TRAIN:
            return GroupVerdict(slots={m.slot: "evaluation" for m in members}, status=TaskStatus.COMPLETED), []
        verdict = judge_group(members, self.algo_options)
        trained = {slot: value for slot, value in verdict.slots.items() if isinstance(value, float)}
        rows = [await self._row(claim, records[slot], advantage) for slot, advantage in sorted(trained.items())]
        return verdict, rows

    async def _row(self, claim: Claim, record: Record, advantage: float) -> DBRecordData:
        turns: list[DispatchedSamplingTask] = await self.store.find("turn", record=record.id)
        return build_row(
            task=claim.task.id,
            seq=claim.task.seq,
            slot=record.slot,
            record=record.id,
            turns=turns,
            turn_advantages=turn_advantages(advantage, [turn.flags for turn in turns], self.algo_options),
            reward=record.score or 0.0,
        )

    def _sampling(self, claim: Claim, slot: int) -> Sampling:
        """Sampling values of this split, with a seed that depends on task and slot, not on who samples or when."""
        options = self.rollout_options
        train = claim.task.split is Split.TRAIN
        values = options.preferred_sampling_params if train else options.eval_sampling_params
        digest = hashlib.sha256(f"{self.seed}/{claim.task.id}/{slot}".encode()).digest()
        return Sampling(
            max_new_tokens=options.max_new_tokens,
            temperature=float(values.get("temperature", 1.0)),
            top_p=float(values.get("top_p", 1.0)),
            top_k=int(values.get("top_k", 0)),
            seed=int.from_bytes(digest[:7], "big"),
            stop_token_ids=self.renderer.stop_token_ids,
        )


def group_timings(claim: Claim, records: Mapping[int, Record]) -> Timings:
    """Of the records that count, and of the wait for the claim."""
    return sum((record.timings for record in records.values()), Timings(claim=claim.waited_seconds))


def trusted_score(record: Record) -> float | None:
    """The score that may enter a baseline; None for records that are broken, late or could not be judged."""
    return record.score if record.status is RecordStatus.SCORED else None
