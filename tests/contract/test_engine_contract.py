"""What every engine does, played on the scripted one, the embedded one, and on both through client and server."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from engine_cases import KINDS, MAX_CONTEXT, PROMPT, Case, opened, until

from agentrl.engine import Engine
from agentrl.errors import ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

Scene = Callable[[Case], Awaitable[None]]


@pytest.fixture(params=KINDS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    def run(scene: Scene, *, version: int | None = 0) -> None:
        async def main() -> None:
            async with opened(request.param, tmp_path, version=version) as case:
                await scene(case)

        asyncio.run(main())

    return run


async def generate(
    engine: Engine, prompt: list[int] = PROMPT, *, session: str = "s", deadline: float = 20.0, **sampling
) -> Completion:
    options = Sampling(**{"max_new_tokens": 12, "temperature": 0.0, **sampling})
    return await engine.generate(prompt, sampling=options, session=session, deadline_seconds=deadline)


def require_exact(completion: Completion) -> None:
    """One finite log-prob per id, and spans that cover the ids one after the other."""
    assert len(completion.logprobs) == len(completion.token_ids) > 0
    assert all(math.isfinite(logprob) and logprob <= 0 for logprob in completion.logprobs)
    edges = [0, *(span.end for span in completion.version_spans)]
    assert [span.start for span in completion.version_spans] == edges[:-1]
    assert edges[-1] == len(completion.token_ids)
    assert all(span.end > span.start for span in completion.version_spans)


async def generated(engine: Engine, at_least: int) -> None:
    async def enough() -> bool:
        return (await engine.health()).generated_tokens >= at_least

    await until(enough)


async def idle(engine: Engine) -> None:
    async def nothing_open() -> bool:
        health = await engine.health()
        return health.running == health.waiting == 0

    await until(nothing_open)


def test_ids_logprobs_and_spans_cover_each_other(play) -> None:
    async def scene(case: Case) -> None:
        completion = await generate(case.engine, temperature=0.7, top_p=0.9, top_k=20, seed=3)
        require_exact(completion)
        assert len(completion.token_ids) == 12
        assert [span.version for span in completion.version_spans] == [0]
        assert completion.prompt_tokens == len(PROMPT)

    play(scene)


def test_it_ends_at_a_stop_id_which_is_kept_or_at_the_limit(play) -> None:
    async def scene(case: Case) -> None:
        free = await generate(case.engine)
        assert free.finish_reason == "length"
        stop = free.token_ids[5]
        cut = await generate(case.engine, stop_token_ids=(stop,))
        assert list(cut.token_ids) == list(free.token_ids[: list(free.token_ids).index(stop) + 1])
        assert cut.finish_reason == "stop"
        require_exact(cut)

    play(scene)


def test_requests_of_one_moment_do_not_disturb_each_other(play) -> None:
    async def scene(case: Case) -> None:
        prompts = [[*PROMPT, 1 + i] for i in range(12)]
        alone = [await generate(case.engine, prompt, session=f"a{i}") for i, prompt in enumerate(prompts)]
        together = await asyncio.gather(
            *(generate(case.engine, prompt, session=f"t{i}") for i, prompt in enumerate(prompts))
        )
        assert [list(each.token_ids) for each in together] == [list(each.token_ids) for each in alone]

    play(scene)


def test_cancelling_frees_the_engine(play) -> None:
    async def scene(case: Case) -> None:
        tasks = [asyncio.create_task(generate(case.engine, max_new_tokens=240, session=f"{i}")) for i in range(8)]
        await generated(case.engine, 16)
        for task in tasks:
            task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
        await idle(case.engine)
        before = (await case.engine.health()).generated_tokens
        assert before < 8 * 240
        require_exact(await generate(case.engine))

    play(scene)


def test_weights_that_change_in_flight_give_two_spans_and_lose_no_token(play) -> None:
    async def scene(case: Case) -> None:
        source = case.source(1, 0.0)
        task = asyncio.create_task(generate(case.engine, max_new_tokens=240))
        await generated(case.engine, 8)
        confirmation = await case.engine.update_weights(4, source)
        assert confirmation.version == 4
        assert confirmation.canary_difference is not None
        assert confirmation.canary_difference <= 1e-4
        completion = await task
        require_exact(completion)
        assert len(completion.token_ids) == 240
        assert [span.version for span in completion.version_spans] == [0, 4]
        later = await generate(case.engine)
        assert [span.version for span in later.version_spans] == [4]
        assert (await case.engine.health()).version == 4

    play(scene)


def test_without_weights_it_waits_for_the_first_version(play) -> None:
    async def scene(case: Case) -> None:
        health = await case.engine.health()
        assert not health.ready
        assert health.version is None
        task = asyncio.create_task(generate(case.engine))
        await asyncio.sleep(0.1)
        assert not task.done()
        await case.engine.update_weights(7, case.source(1, 0.0))
        completion = await task
        assert [span.version for span in completion.version_spans] == [7]
        assert (await case.engine.health()).ready

    play(scene, version=None)


def test_a_pause_stops_sampling_and_loses_nothing(play) -> None:
    async def scene(case: Case) -> None:
        task = asyncio.create_task(generate(case.engine, max_new_tokens=200))
        await generated(case.engine, 5)
        await case.engine.pause()
        await asyncio.sleep(0.05)
        before = (await case.engine.health()).generated_tokens
        await asyncio.sleep(0.1)
        health = await case.engine.health()
        assert health.generated_tokens == before < 200
        assert not health.ready
        await case.engine.resume()
        completion = await task
        require_exact(completion)
        assert len(completion.token_ids) == 200

    play(scene)


def test_a_completion_says_how_long_it_waited_until_it_was_begun(play) -> None:
    async def scene(case: Case) -> None:
        await case.engine.pause()
        task = asyncio.create_task(generate(case.engine, max_new_tokens=5))
        await asyncio.sleep(0.2)
        await case.engine.resume()
        completion = await task
        assert 0.1 < completion.queue_seconds <= completion.latency_seconds

    play(scene)


def test_a_prompt_that_fills_the_context_is_refused_and_the_rest_of_it_is_used(play) -> None:
    async def scene(case: Case) -> None:
        with pytest.raises(ContextTooLong, match=str(MAX_CONTEXT)):
            await generate(case.engine, [3] * MAX_CONTEXT)
        last = await generate(case.engine, [3] * (MAX_CONTEXT - 4))
        assert len(last.token_ids) == 4
        assert last.finish_reason == "length"

    play(scene)


def test_a_wrong_canary_is_refused_and_the_version_before_is_served(play) -> None:
    async def scene(case: Case) -> None:
        await case.engine.update_weights(1, case.source(1, 0.0))
        before = await generate(case.engine)
        with pytest.raises(WeightsError, match="canary"):
            await case.engine.update_weights(2, case.source(2, 0.5))
        assert (await case.engine.health()).version == 1
        after = await generate(case.engine, session="new")
        assert list(after.token_ids) == list(before.token_ids)
        assert list(after.logprobs) == pytest.approx(list(before.logprobs), abs=1e-5)
        assert [span.version for span in after.version_spans] == [1]

    play(scene)


def test_the_deadline_ends_a_request_that_waits_and_one_that_samples(play) -> None:
    async def scene(case: Case) -> None:
        begun = time.monotonic()
        with pytest.raises(EngineError, match=r"0\.1"):
            await generate(case.engine, deadline=0.1)
        assert time.monotonic() - begun < 1
        await case.engine.update_weights(1, case.source(1, 0.0))
        with pytest.raises(EngineError, match=r"0\.05"):
            await generate(case.engine, max_new_tokens=240, deadline=0.05)
        await idle(case.engine)
        require_exact(await generate(case.engine))

    play(scene, version=None)
