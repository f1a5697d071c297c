"""``SimulatedRunner``: the group runner of a sampler, whose episodes take time and say nothing.

Slots, attempts, deadlines of groups, verdicts and the writes to the store are ``GroupRunner``'s; only the episode
itself and the row made of it are drawn from the workload.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from agentrl.rollout.episode import Episode
from agentrl.rollout.group import GroupRunner
from agentrl.simulate.workload import PlannedEpisode, Workload
from agentrl.types import (
    Claim,
    DBRecordData,
    Outcome,
    Record,
    RecordStatus,
    Sampling,
    Score,
    VersionSpan,
)


@dataclass(slots=True, kw_only=True)
class Played:
    """One attempt: what was planned, and which versions have sampled how much of it so far."""

    planned: PlannedEpisode
    spans: list[VersionSpan] = field(default_factory=list)

    @property
    def versions(self) -> list[int]:
        return [span.version for span in self.spans]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRunner(GroupRunner):
    """``played`` holds every attempt by record id, for whoever measures; shared by all samplers."""

    workload: Workload
    played: dict[str, Played]

    async def _play_once(self, claim: Claim, episode: Episode) -> Record:
        record = episode.record
        planned = self.workload.episode(claim.task, record)
        played = self.played[record.id] = Played(planned=planned)
        try:
            async with asyncio.timeout(self.rollout_options.episode_timeout):
                await self._take_turns(played, record.id)
        except TimeoutError:
            return replace(episode.finish(Outcome.TIMEOUT), status=RecordStatus.FAILED)
        score = Score(value=planned.score, scorer="simulated")
        return replace(
            record,
            status=RecordStatus.SCORED,
            outcome=Outcome.ANSWERED,
            scores=(score,),
            num_turns=len(planned.turns),
            sampled_tokens=planned.num_tokens,
            min_version=min(played.versions),
            max_version=max(played.versions),
        )

    async def _take_turns(self, played: Played, session: str) -> None:
        engine = self.pace.counted(self.engine)
        for turn in played.planned.turns:
            sampling = Sampling(max_new_tokens=turn.num_tokens)
            completion = await engine.generate(
                (), sampling=sampling, session=session, deadline_seconds=self.rollout_options.episode_timeout
            )
            played.spans += completion.version_spans
            if turn.tool_seconds:
                await asyncio.sleep(turn.tool_seconds)

    async def _row(self, claim: Claim, record: Record, advantage: float) -> DBRecordData:
        """Without tokens: rules read its versions only."""
        versions = self.played[record.id].versions
        return DBRecordData(
            record=record.id,
            task=claim.task.id,
            seq=claim.task.seq,
            slot=record.slot,
            token_ids=(),
            mask=(),
            behavior_logprobs=(),
            versions=(),
            turns=(),
            start_version=min(versions),
            end_version=max(versions),
            reward=record.score or 0.0,
        )
