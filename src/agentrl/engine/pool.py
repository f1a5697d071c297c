"""Several engines as one: sticky by session, else the least loaded; one that keeps failing is left out.

The watch consumes health answers of services that are out, waits between rounds, and unblocks requests that found no
service.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentrl.engine.base import Confirmation, Engine, EngineHealth, WeightSource
from agentrl.engine.client import EngineClient, EngineUnavailable
from agentrl.errors import ConfigError, ContextTooLong, EngineError, EngineOutage
from agentrl.types import Completion, Sampling

logger = logging.getLogger(__name__)

MAX_FAILURES = 3
NUM_SESSIONS = 1 << 16


@dataclass(slots=True, eq=False)
class Service:
    url: str
    engine: Engine
    num_open: int = 0
    num_failures: int = 0
    last_error: str = ""
    withdrawn: bool = False

    @property
    def out(self) -> bool:
        return self.withdrawn or self.num_failures >= MAX_FAILURES


class EnginePool:
    """``Engine`` over the services at ``urls``.

    A service that failed three times in a row gets no request until a health check, every ``check_seconds``, finds it
    ready. When all have been out for ``recovery_seconds``, waiting requests raise ``EngineOutage``, which ends the
    sampler instead of its episodes, and says what each service said last.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        check_seconds: float = 1.0,
        recovery_seconds: float = 20.0,
        connect: Callable[[str], Engine] = EngineClient,
    ) -> None:
        if not urls:
            raise ConfigError("an engine pool needs at least one URL", setting="--engine_url")
        self._connect = connect
        self._services = [Service(url, connect(url)) for url in dict.fromkeys(urls)]
        self._check_seconds = check_seconds
        self._recovery_seconds = recovery_seconds
        self._homes: OrderedDict[str, Service] = OrderedDict()
        self._watch: asyncio.Task[None] | None = None
        self._recovered = asyncio.Event()
        self._out_since: float | None = None

    @property
    def num_up(self) -> int:
        """Services that get requests."""
        return sum(not service.out for service in self._services)

    def follow(self, urls: Sequence[str]) -> None:
        """From now on new requests go to ``urls`` only; those in flight elsewhere end where they are."""
        known = {service.url: service for service in self._services}
        self._services += [Service(url, self._connect(url)) for url in dict.fromkeys(urls) if url not in known]
        for url, service in known.items():
            if url not in urls and not service.withdrawn:
                service.withdrawn, service.last_error = True, f"{url} is not UP"
                logger.info("%s is not UP: it gets no further request", url)
            elif url in urls and service.withdrawn:
                service.withdrawn = False
        self._note_outage()

    def require_one(self) -> None:
        """Raise ``EngineOutage`` when all services have been out for ``recovery_seconds``."""
        if self._out_since is not None and time.monotonic() - self._out_since >= self._recovery_seconds:
            raise EngineOutage(f"no engine was well for {self._recovery_seconds:g} s: {self._last_errors()}")

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        """A request lost on its way is sent once more within the deadline: elsewhere, or here once this one is well."""
        end = asyncio.get_running_loop().time() + deadline_seconds
        service = await self._service_for(session, deadline_seconds)
        left = end - asyncio.get_running_loop().time()
        try:
            return await self._ask(service, prompt_ids, sampling, session, left)
        except EngineUnavailable:
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise
        elsewhere = [other for other in self._services if other is not service and not other.out]
        if not elsewhere:
            self._leave_out(service)
        again = self._settle(session, elsewhere) if elsewhere else await self._service_for(session, left)
        left = end - asyncio.get_running_loop().time()
        return await self._ask(again, prompt_ids, sampling, session, left)

    async def _ask(
        self, service: Service, prompt_ids: Sequence[int], sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        service.num_open += 1
        try:
            completion = await service.engine.generate(
                prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds
            )
        except ContextTooLong:
            self._note_well(service)
            raise
        except EngineError as error:
            self._note(service, error)
            raise
        finally:
            service.num_open -= 1
        self._note_well(service)
        return completion

    async def _service_for(self, session: str, deadline_seconds: float) -> Service:
        home = self._homes.get(session)
        if home is not None and not home.out:
            self._homes.move_to_end(session)
            return home
        return self._settle(session, await self._well_services(deadline_seconds))

    def _settle(self, session: str, services: Sequence[Service]) -> Service:
        """The least loaded of ``services`` becomes the home of ``session``; one that fails fast is not preferred.

        Loads are those of this pool alone. Of equally loaded ones the session's name picks, else every sampler would
        fill the same first services.
        """
        digest = hashlib.blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        first = int.from_bytes(digest, "big") % len(services)
        rotated = (*services[first:], *services[:first])
        service = min(rotated, key=lambda each: (each.num_failures, each.num_open))
        self._homes[session] = service
        self._homes.move_to_end(session)
        if len(self._homes) > NUM_SESSIONS:
            self._homes.popitem(last=False)
        return service

    async def _well_services(self, deadline_seconds: float) -> list[Service]:
        """Services that are not out, or the first that is well again.

        The outage is as old as it is, whoever asks: a request whose own deadline comes first is an ``EngineError``.
        """
        left = self._recovery_seconds - (time.monotonic() - self._out_since if self._out_since is not None else 0.0)
        try:
            async with asyncio.timeout(max(0.0, min(deadline_seconds, left))):
                while not (well := [service for service in self._services if not service.out]):
                    self._recovered.clear()
                    await self._recovered.wait()
                return well
        except TimeoutError as error:
            said = self._last_errors()
            if left <= deadline_seconds:
                raise EngineOutage(f"no engine was well for {self._recovery_seconds:g} s: {said}") from error
            raise EngineError(f"no engine was well within the deadline ({deadline_seconds:.3g} s): {said}") from error

    def _last_errors(self) -> str:
        return "; ".join(service.last_error for service in self._services)

    def _note(self, service: Service, error: EngineError) -> None:
        service.num_failures += 1
        service.last_error = str(error)
        if service.num_failures == MAX_FAILURES:
            self._leave_out(service)

    def _note_well(self, service: Service) -> None:
        service.num_failures = 0
        self._note_outage()

    def _note_outage(self) -> None:
        """Since when all services are out; requests that wait for one go on once there is one."""
        if any(not service.out for service in self._services):
            self._out_since = None
            self._recovered.set()
        elif self._out_since is None:
            self._out_since = time.monotonic()

    def _leave_out(self, service: Service) -> None:
        """Until a health check finds it well."""
        service.num_failures = max(service.num_failures, MAX_FAILURES)
        self._note_outage()
        if self._watch is None or self._watch.done():
            logger.warning("%s is left out until it is well again: %s", service.url, service.last_error)
            self._watch = asyncio.create_task(self._watch_until_well(), name="engine health")

    async def _watch_until_well(self) -> None:
        """Ask the services that failed how they are, until none is out."""
        while sick := [service for service in self._services if service.num_failures >= MAX_FAILURES]:
            await asyncio.sleep(self._check_seconds)
            await asyncio.gather(*(self._check(service) for service in sick))

    async def _check(self, service: Service) -> None:
        try:
            health = await service.engine.health()
        except EngineError as error:
            service.last_error = str(error)
            return
        if health.ready:
            logger.info("%s is well again", service.url)
            self._note_well(service)

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        """Of all services; the first that does not confirm is the error."""
        seen = await asyncio.gather(*(each.engine.update_weights(version, source) for each in self._services))
        differences = [each.canary_difference for each in seen if each.canary_difference is not None]
        urls = ", ".join(each.url for each in self._services)
        return Confirmation(url=urls, version=version, canary_difference=max(differences, default=None))

    async def pause(self) -> None:
        await asyncio.gather(*(service.engine.pause() for service in self._services))

    async def resume(self) -> None:
        await asyncio.gather(*(service.engine.resume() for service in self._services))

    async def health(self) -> EngineHealth:
        """Sums over the services; ready when one is, and the oldest version that a request may meet."""
        answers = await asyncio.gather(*(service.engine.health() for service in self._services), return_exceptions=True)
        seen = [answer for answer in answers if isinstance(answer, EngineHealth)]
        versions = [each.version for each in seen if each.version is not None]
        return EngineHealth(
            ready=any(each.ready for each in seen),
            version=min(versions, default=None),
            running=sum(each.running for each in seen),
            waiting=sum(each.waiting for each in seen),
            generated_tokens=sum(each.generated_tokens for each in seen),
            detail="; ".join(str(answer) for answer in answers if isinstance(answer, BaseException)),
        )

    async def silence(self) -> str:
        """What is wrong with the services when none of them answers; empty as soon as one does, ready or not."""
        answers = await asyncio.gather(*(service.engine.health() for service in self._services), return_exceptions=True)
        if any(isinstance(answer, EngineHealth) for answer in answers):
            return ""
        return "; ".join(str(answer) for answer in answers)

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await asyncio.gather(*(service.engine.close() for service in self._services))
