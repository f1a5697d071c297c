"""``SamplersSeen``: a trainer that waits for samplers hears of it when the last of them has died."""

from __future__ import annotations

import socket
import time

from agentrl.errors import WaitTimeout
from agentrl.store.base import TakeRule
from agentrl.store.blocking import BlockingStore
from agentrl.types import Worker

LOOK_SECONDS = 1.0


class SamplersSeen:
    """Only samplers that were alive in this trainer's time count: before the first, none can have died."""

    def __init__(self, store: BlockingStore) -> None:
        self._store = store
        self._seen: dict[str, Worker] = {}
        self._last_look = -LOOK_SECONDS
        self._last_alive = 0.0
        self.all_left = False
        """At the last look none of the samplers ever seen was alive."""

    def require_one(self, rule: TakeRule, *, within_seconds: float) -> None:
        """Raise ``WaitTimeout`` when all samplers ever seen have been silent or gone for ``within_seconds``.

        Silence is as old as the last heartbeat. Looks at most once a second.
        """
        now = time.monotonic()
        if now - self._last_look < min(LOOK_SECONDS, within_seconds / 4):
            return
        if now - self._last_look > within_seconds:
            self._last_alive = now  # it was not waiting meanwhile, so it could not have seen them
        self._last_look = now
        samplers = [worker for worker in self._store.call(self._store.store.workers) if worker.kind == "sampler"]
        self._seen |= {worker.id: worker for worker in samplers if worker.alive or worker.id in self._seen}
        self.all_left = bool(self._seen) and not any(worker.alive for worker in samplers)
        youngest = min((worker.age_seconds for worker in samplers if worker.id in self._seen), default=None)
        if youngest is not None:
            self._last_alive = max(self._last_alive, now - youngest)
        if self._seen and now - self._last_alive >= within_seconds:
            raise WaitTimeout(self._all_died(rule, now - self._last_alive))

    def _all_died(self, rule: TakeRule, seconds: float) -> str:
        host = socket.gethostname()
        here = [worker.id for worker in self._seen.values() if worker.host == host]
        logs = "see logs/sampler.log in the run folder" if here else "see their logs on their hosts"
        return (
            f"no sampler has been alive for {seconds:.0f} s (--sampler_timeout), so step {rule.step} would wait for "
            f"ever: {', '.join(self._seen)} died or left; {logs}. Start `agentrl sample` again, and go on with "
            "--resume_from_checkpoint auto"
        )
