"""An engine that says what a script says: for tests, demos and the other half of every contract suite.

It waits, pauses, stops, counts and records versions as a real one does, and can be told to be slow, to fail, to hang,
to stall its version or to refuse the canary.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from agentrl.engine.base import Confirmation, EngineHealth, WeightSource, spans_of
from agentrl.errors import ConfigError, ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

Script = Callable[[Sequence[int], str, Sampling], Sequence[int]]
"""``(prompt_ids, session, sampling) -> token_ids``; the sampled ids, cut at a stop id or at ``max_new_tokens``."""

Logprobs = Callable[[Sequence[int], Sequence[int]], Sequence[float]]
"""``(prompt_ids, token_ids) -> log-prob of each of token_ids`` given what stands before it."""


@dataclass(slots=True, kw_only=True)
class Faults:
    """What the engine does wrong now; may be changed while it runs."""

    seconds_per_token: float = 0.0
    fail: int = 0
    """How many of the next requests fail; -1: all."""
    hang: bool = False
    stall_version: bool = False
    refuse_canary: bool = False


def constant_logprobs(prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Sequence[float]:
    return [-1.0] * len(token_ids)


class ScriptedEngine:
    """``version`` None: requests wait for the first ``update_weights``, as they do at a real engine.

    ``check_canary`` True compares canaries with ``logprobs``; otherwise they are accepted unseen and the confirmation
    has no difference, because a script has no weights that could be wrong. ``updates`` are the versions and sources it
    was given, ``prompts`` the sessions and prompt ids of all requests.
    """

    def __init__(
        self,
        script: Script | str,
        *,
        logprobs: Logprobs = constant_logprobs,
        version: int | None = None,
        max_context: int = 1 << 20,
        check_canary: bool = False,
        faults: Faults | None = None,
    ) -> None:
        self._script = load_script(script) if isinstance(script, str) else script
        self._logprobs = logprobs
        self._max_context = max_context
        self._check_canary = check_canary
        self.faults = faults or Faults()
        self.version = version
        self.updates: list[tuple[int, WeightSource]] = []
        self.prompts: list[tuple[str, list[int]]] = []
        self._paused = False
        self._gate = asyncio.Event()
        self._running = 0
        self._waiting = 0
        self._generated_tokens = 0
        self._set_gate()

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        begun = time.monotonic()
        self.prompts.append((session, list(prompt_ids)))
        if len(prompt_ids) >= self._max_context:
            raise ContextTooLong(f"{len(prompt_ids)} prompt tokens, the engine's context has {self._max_context}")
        if self.faults.fail:
            self.faults.fail -= self.faults.fail > 0
            raise EngineError("scripted failure")
        self._running += 1
        try:
            async with asyncio.timeout(deadline_seconds):
                completion = await self._decode(prompt_ids, sampling, session)
        except TimeoutError as error:
            raise EngineError(f"no completion within the deadline of {deadline_seconds:g} s") from error
        finally:
            self._running -= 1
        return replace(completion, latency_seconds=time.monotonic() - begun)

    async def _decode(self, prompt_ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        begun = time.monotonic()
        await self._open_gate()
        queue_seconds = time.monotonic() - begun
        if self.faults.hang:
            await asyncio.Event().wait()
        planned, finish_reason = cut(self._script(prompt_ids, session, sampling), sampling)
        room = self._max_context - len(prompt_ids)
        if len(planned) > room:
            planned, finish_reason = planned[:room], "length"
        versions: list[int] = []
        for _ in planned:
            await asyncio.sleep(self.faults.seconds_per_token)
            await self._open_gate()
            assert self.version is not None, "the gate is open only once there is a version"
            versions.append(self.version)
            self._generated_tokens += 1
        return Completion(
            token_ids=planned,
            logprobs=list(self._logprobs(prompt_ids, planned)),
            version_spans=spans_of(versions),
            finish_reason=finish_reason,
            prompt_tokens=len(prompt_ids),
            queue_seconds=queue_seconds,
        )

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        self.updates.append((version, source))
        difference = self._canary_difference(source)
        if self.faults.stall_version:
            return Confirmation(url="", version=self.version or 0, canary_difference=difference)
        self.version = version
        self._set_gate()
        return Confirmation(url="", version=version, canary_difference=difference)

    def _canary_difference(self, source: WeightSource) -> float | None:
        canary = source.canary
        if self.faults.refuse_canary:
            raise WeightsError("the canary is refused, as scripted")
        if canary is None or not self._check_canary:
            return None
        seen = self._logprobs(canary.token_ids[:1], canary.token_ids[1:])
        difference = max(abs(a - b) for a, b in zip(seen, canary.logprobs, strict=True))
        if not difference <= canary.tolerance:
            raise WeightsError(f"the canary differs by {difference:.3g}, allowed is {canary.tolerance:g}")
        return difference

    async def pause(self) -> None:
        self._paused = True
        self._set_gate()

    async def resume(self) -> None:
        self._paused = False
        self._set_gate()

    async def health(self) -> EngineHealth:
        return EngineHealth(
            ready=self._gate.is_set(),
            version=self.version,
            running=self._running - self._waiting,
            waiting=self._waiting,
            generated_tokens=self._generated_tokens,
            detail="" if self._gate.is_set() else "paused" if self._paused else "waits for its first weights",
        )

    async def close(self) -> None:
        return None

    def _set_gate(self) -> None:
        if self._paused or self.version is None:
            self._gate.clear()
        else:
            self._gate.set()

    async def _open_gate(self) -> None:
        if self._gate.is_set():
            return
        self._waiting += 1
        try:
            while not self._gate.is_set():
                await self._gate.wait()
        finally:
            self._waiting -= 1


def cut(token_ids: Sequence[int], sampling: Sampling) -> tuple[list[int], str]:
    """Up to and with the first stop id, at most ``max_new_tokens``; and why it ends there."""
    stop = next((index for index, token in enumerate(token_ids) if token in sampling.stop_token_ids), None)
    kept = list(token_ids if stop is None else token_ids[: stop + 1])
    if not kept:
        raise EngineError("the script said nothing; a completion has at least one token")
    if len(kept) > sampling.max_new_tokens:
        return kept[: sampling.max_new_tokens], "length"
    return kept, "length" if stop is None and len(kept) == sampling.max_new_tokens else "stop"


def load_script(name: str) -> Script:
    """``module:attr`` -> the callable."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"no script {name!r} (module:attr expected): {error}", setting="script") from error
    if callable(found):
        return cast(Script, found)
    raise ConfigError(f"{name!r} is a {type(found).__name__}, expected a callable", setting="script")
