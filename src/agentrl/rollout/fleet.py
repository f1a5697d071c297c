"""Who samples and who serves in a run, as a sampler sees it: what it shares, and with how many."""

from __future__ import annotations

from typing import Protocol

from agentrl.rollout.scheduler import Fleet
from agentrl.store.base import Store
from agentrl.types import ServiceStatus, Worker


class EngineGroup(Protocol):
    """Several engines behind one; ``EnginePool`` is one."""

    @property
    def num_up(self) -> int: ...

    def follow(self, urls: list[str]) -> None: ...

    def require_one(self) -> None:
        """Raise when there has been none for too long."""
        ...


class FleetWatch:
    """Counts of one run. ``engines`` None is one engine that is always there.

    With ``registered`` the engines are those that are UP in the store, from moment to moment; else the ones that
    ``engines`` was made with, as far as they answer.
    """

    def __init__(self, store: Store, worker: Worker, engines: EngineGroup | None = None, *, registered: bool) -> None:
        self._store = store
        self._worker = worker
        self._engines = engines
        self._registered = registered
        self._samplers = [worker.id]

    async def look(self) -> None:
        """Ask the store; raise ``EngineOutage`` when no engine has been there for too long."""
        workers = await self._store.workers()
        alive = {worker.id for worker in workers if worker.kind == self._worker.kind and worker.alive}
        self._samplers = sorted(alive | {self._worker.id})
        if self._engines is None:
            return
        if self._registered:
            services = await self._store.services()
            self._engines.follow([each.url for each in services if each.status is ServiceStatus.UP])
        self._engines.require_one()

    def seen(self) -> Fleet:
        """As of the last look; engines as of now."""
        return Fleet(
            num_engines=1 if self._engines is None else self._engines.num_up,
            num_samplers=len(self._samplers),
            rank=self._samplers.index(self._worker.id),
        )
