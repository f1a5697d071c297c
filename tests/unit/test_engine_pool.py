"""Routing between services: sessions stay, load spreads, what fails is left out and comes back."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from engine_cases import count_up, served

from agentrl.engine import WeightSource
from agentrl.engine.client import EngineClient, EngineUnavailable
from agentrl.engine.pool import MAX_FAILURES, EnginePool
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError, ContextTooLong, EngineError, EngineOutage
from agentrl.types import Completion, Sampling


class Losing(ScriptedEngine):
    """Loses every request while ``lost`` is set, as a dead service does, at once."""

    lost = False
    num_asked = 0

    async def generate(self, prompt_ids, *, sampling, session, deadline_seconds):
        self.num_asked += 1
        if self.lost:
            raise EngineUnavailable("connection refused")
        return await super().generate(prompt_ids, sampling=sampling, session=session, deadline_seconds=deadline_seconds)

    async def health(self):
        if self.lost:
            raise EngineUnavailable("connection refused")
        return await super().health()


Scene = Callable[[EnginePool, list[Losing]], Awaitable[None]]


def play(scene: Scene, *, num: int = 2, recovery_seconds: float = 0.3) -> None:
    async def main() -> None:
        engines = {f"http://e{i}": Losing(count_up, version=0, max_context=64) for i in range(num)}
        pool = EnginePool(
            list(engines), check_seconds=0.05, recovery_seconds=recovery_seconds, connect=engines.__getitem__
        )
        try:
            await scene(pool, list(engines.values()))
        finally:
            await pool.close()

    asyncio.run(main())


async def ask(pool: EnginePool, session: str = "s", *, prompt: int = 3, deadline: float = 5.0) -> Completion:
    return await pool.generate(
        [1] * prompt, sampling=Sampling(max_new_tokens=2), session=session, deadline_seconds=deadline
    )


def test_a_session_stays_where_it_began_and_load_spreads() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        for engine in engines:
            engine.faults.seconds_per_token = 0.005
        for step in (1, 5, 7):
            await asyncio.gather(*(ask(pool, f"{i * step % 12}") for i in range(12)))
        sessions = [{session for session, _ in engine.prompts} for engine in engines]
        assert [len(each) for each in sessions] == [4, 4, 4]
        assert not set.intersection(*sessions)
        assert [engine.num_asked for engine in engines] == [12, 12, 12]

    play(scene, num=3)


def test_a_lost_request_is_answered_elsewhere_and_its_session_moves() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        await ask(pool, "a")
        home = next(engine for engine in engines if engine.num_asked)
        (other,) = [engine for engine in engines if engine is not home]
        home.lost = True
        assert len((await ask(pool, "a")).token_ids) == 2
        await ask(pool, "a")
        assert (home.num_asked, other.num_asked) == (2, 2)

    play(scene)


def test_a_request_is_moved_once_not_for_ever() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        for engine in engines:
            engine.lost = True
        with pytest.raises(EngineUnavailable):
            await ask(pool)
        assert sum(engine.num_asked for engine in engines) == 2

    play(scene, num=4)


def test_a_dead_service_gets_no_more_requests_and_comes_back_when_well() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        dead, alive = engines
        dead.lost = True
        for i in range(40):
            assert len((await ask(pool, f"{i}")).token_ids) == 2
        assert dead.num_asked <= MAX_FAILURES
        while dead.num_asked < MAX_FAILURES:
            alive.lost = True
            with pytest.raises(EngineError):
                await ask(pool, f"x{time.monotonic()}")
            alive.lost = False
        await asyncio.sleep(0.2)
        before = dead.num_asked
        await asyncio.gather(*(ask(pool, f"later{i}") for i in range(10)))
        assert dead.num_asked == before
        dead.lost = False
        await asyncio.sleep(0.2)
        for engine in engines:
            engine.faults.seconds_per_token = 0.005
        await asyncio.gather(*(ask(pool, f"again{i}") for i in range(10)))
        assert dead.num_asked > before

    play(scene)


def test_a_failure_in_the_service_is_not_played_again_elsewhere() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        for engine in engines:
            engine.faults.fail = 1
        with pytest.raises(EngineError, match="scripted failure"):
            await ask(pool)
        assert sum(engine.num_asked for engine in engines) == 1

    play(scene)


def test_prompts_that_are_too_long_say_nothing_about_the_service() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        for _ in range(MAX_FAILURES + 1):
            with pytest.raises(ContextTooLong):
                await ask(pool, prompt=64)
        assert len((await ask(pool)).token_ids) == 2

    play(scene, num=1)


def test_a_request_lost_at_the_only_service_waits_until_it_is_well() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        (only,) = engines
        only.lost = True
        waiting = [asyncio.create_task(ask(pool, f"{i}")) for i in range(3)]
        await asyncio.sleep(0.1)
        late = [asyncio.create_task(ask(pool, f"late{i}")) for i in range(3)]
        await asyncio.sleep(0.1)
        assert only.num_asked == 1
        only.lost = False
        assert [len(each.token_ids) for each in await asyncio.gather(*waiting, *late)] == [2] * 6

    play(scene, num=1, recovery_seconds=5)


def test_an_outage_says_what_the_services_said_and_is_as_old_as_it_is() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        for engine in engines:
            engine.lost = True
        while not all(engine.num_asked >= MAX_FAILURES for engine in engines):
            with pytest.raises(EngineUnavailable):
                await ask(pool, f"{time.monotonic()}")
        says = r"no engine was well for 0\.3 s: connection refused; connection refused"
        begun = time.monotonic()
        with pytest.raises(EngineOutage, match=says):
            await ask(pool, "first")
        assert 0.2 < time.monotonic() - begun < 1
        begun = time.monotonic()
        with pytest.raises(EngineOutage, match=says):
            await ask(pool, "second")
        assert time.monotonic() - begun < 0.2

    play(scene)


def test_a_request_whose_deadline_ends_first_is_its_own_error_and_no_outage() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        (only,) = engines
        only.lost = True
        with pytest.raises(EngineError, match=r"within the deadline.*connection refused"):
            await ask(pool, deadline=0.2)
        only.lost = False
        assert len((await ask(pool)).token_ids) == 2

    play(scene, num=1, recovery_seconds=5)


def test_control_reaches_all_and_health_is_the_sum() -> None:
    async def scene(pool: EnginePool, engines: list[Losing]) -> None:
        await pool.pause()
        assert not (await pool.health()).ready
        await pool.resume()
        assert (await pool.update_weights(3, WeightSource(path="/w"))).version == 3
        await asyncio.gather(*(ask(pool, f"{i}") for i in range(4)))
        health = await pool.health()
        assert (health.ready, health.version, health.generated_tokens) == (True, 3, 8)
        engines[0].lost = True
        health = await pool.health()
        assert health.ready
        assert "connection refused" in health.detail

    play(scene)


def test_no_url_names_the_option() -> None:
    with pytest.raises(ConfigError, match="--engine_url"):
        EnginePool([])


def test_over_http_a_server_that_dies_loses_no_episode() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            alive = await stack.enter_async_context(served(ScriptedEngine(count_up, version=0)))
            dying = AsyncExitStack()
            dead = await dying.enter_async_context(served(ScriptedEngine(count_up, version=0)))
            pool = EnginePool([dead, alive])
            try:
                first = await asyncio.gather(*(ask(pool, f"{i}") for i in range(4)))
                assert {each.service for each in first} == {alive, dead}
                await dying.aclose()
                after = await asyncio.gather(*(ask(pool, f"{i}") for i in range(8)))
                assert {each.service for each in after} == {alive}
            finally:
                await pool.close()

    asyncio.run(main())


def test_two_hundred_requests_at_once_are_all_answered() -> None:
    async def main() -> None:
        engine = ScriptedEngine(count_up, version=0)
        engine.faults.seconds_per_token = 0.3
        async with served(engine) as url:
            client = EngineClient(url)
            try:
                begun = time.monotonic()
                sampling = Sampling(max_new_tokens=2)
                answers = await asyncio.gather(
                    *(
                        client.generate([i], sampling=sampling, session=f"{i}", deadline_seconds=10)
                        for i in range(1, 201)
                    )
                )
                assert [each.token_ids[0] for each in answers] == [i % 64 for i in range(1, 201)]
                assert time.monotonic() - begun < 5
            finally:
                await client.close()

    asyncio.run(main())


def test_samplers_with_fewer_sessions_than_services_do_not_all_fill_the_same_ones() -> None:
    async def main() -> int:
        engines = {f"http://e{i}": Losing(count_up, version=0, max_context=64) for i in range(16)}
        pools = [EnginePool(list(engines), connect=engines.__getitem__) for _ in range(8)]
        sampling = Sampling(max_new_tokens=1)
        await asyncio.gather(
            *(
                pool.generate([1], sampling=sampling, session=f"r/train/0/{index}/{slot}/0", deadline_seconds=5)
                for index, pool in enumerate(pools)
                for slot in range(2)
            )
        )
        return sum(engine.num_asked > 0 for engine in engines.values())

    assert asyncio.run(main()) >= 8
