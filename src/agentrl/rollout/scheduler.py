"""``SamplingScheduler``: how many episodes one sampler should have in progress, and so how many groups to start now.

It has no clock and does no IO: it is told what begins and ends, with the time, and is asked. The aim is a mean number
of model requests in flight per engine. An episode that waits for a tool is no request, so the number of episodes is

    wanted = share of the requests x seconds of episodes / seconds of requests     (both of the last minute or so)

and the whole difference to what is in progress is started at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY_SECONDS = 30.0
PRIOR_SECONDS = 1.0
MAX_EPISODES_PER_REQUEST = 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Engines that take requests, and the samplers that share them; ``rank`` is this one's place among the samplers."""

    num_engines: int = 1
    num_samplers: int = 1
    rank: int = 0

    def share_of(self, target: int) -> int:
        """Requests of this sampler: what does not divide evenly goes to the first ones, so that the sum is exact."""
        each, left = divmod(target * self.num_engines, max(1, self.num_samplers))
        return each + (self.rank < left)


class SamplingScheduler:
    """``target_concurrency`` requests in flight per engine, over all samplers; ``max_episodes`` (0: none) bounds the
    episodes of this one, whatever they wait for.

    Times are seconds of any clock that does not go back.
    """

    def __init__(self, *, target_concurrency: int, max_episodes: int = 0, fleet: Fleet | None = None) -> None:
        self.target_concurrency = target_concurrency
        self.max_episodes = max_episodes
        self.fleet = fleet or Fleet()
        self.num_running = 0
        self.num_requests = 0
        self._unfinished: dict[str, int] = {}
        self._num_unfinished = 0
        self._now: float | None = None
        self._episode_seconds = self._request_seconds = target_concurrency * PRIOR_SECONDS

    # --- What it is told ---------------------------------------------------------------------------------------------

    def see(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def group_started(self, group: str, num_episodes: int) -> None:
        self._unfinished[group] = num_episodes
        self._num_unfinished += num_episodes

    def episode_finished(self, group: str) -> None:
        """For good: an attempt that is made again has not finished. Of a group that was not started it is nothing."""
        if self._unfinished.get(group):
            self._unfinished[group] -= 1
            self._num_unfinished -= 1

    def group_ended(self, group: str) -> None:
        """Finished, abandoned or given back: none of its episodes is in progress."""
        self._num_unfinished -= self._unfinished.pop(group, 0)

    def episode_began(self, now: float) -> None:
        self._advance(now)
        self.num_running += 1

    def episode_ended(self, now: float) -> None:
        self._advance(now)
        self.num_running -= 1

    def request_began(self, now: float) -> None:
        self._advance(now)
        self.num_requests += 1

    def request_ended(self, now: float) -> None:
        self._advance(now)
        self.num_requests -= 1

    # --- What it answers ---------------------------------------------------------------------------------------------

    @property
    def wanted_episodes(self) -> int:
        """Episodes that keep this sampler's share of the requests in flight, within ``max_episodes``."""
        share = self.fleet.share_of(self.target_concurrency)
        wanted = round(share * self.episodes_per_request)
        return min(wanted, self.max_episodes) if self.max_episodes else wanted

    @property
    def episodes_per_request(self) -> float:
        """1 while episodes do nothing but wait for the model."""
        ratio = self._episode_seconds / max(self._request_seconds, self._episode_seconds / MAX_EPISODES_PER_REQUEST)
        return max(1.0, ratio)

    @property
    def has_room(self) -> bool:
        """Whether one more episode may run."""
        return self.num_running < self.wanted_episodes

    def groups_to_start(self, group_size: int) -> int:
        """Groups of ``group_size`` episodes that close the gap to ``wanted_episodes``; 0 while there is none."""
        return max(0, math.ceil((self.wanted_episodes - self._num_unfinished) / group_size))

    def _advance(self, now: float) -> None:
        """Episode and request seconds up to ``now``, those before weighing less by exp(-age / MEMORY_SECONDS)."""
        passed = 0.0 if self._now is None else now - self._now
        self._now = now
        if passed <= 0.0:
            return
        kept = math.exp(-passed / MEMORY_SECONDS)
        new = MEMORY_SECONDS * (1.0 - kept)
        self._episode_seconds = kept * self._episode_seconds + new * self.num_running
        self._request_seconds = kept * self._request_seconds + new * self.num_requests
