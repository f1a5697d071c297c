"""The embedded engine: a thread that decodes all live requests together, one token a step.

    waiting ─▶ prefill into a row ─▶ live ─▶ one token a step ─▶ done: the row keeps its KV for the session's next turn
                                              ▲ weights change here, between two steps, with requests in flight

The thread consumes a queue of commands, waits only when nothing is live, and is unblocked by the next command. Rows
whose KV was computed by one version alone serve as prefixes for siblings and later turns of that version, never of
another.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agentrl.engine.base import Confirmation, EngineHealth, WeightSource, spans_of
from agentrl.engine.decoder import NO_VERSION, Decoder
from agentrl.engine.draw import Draws
from agentrl.engine.weights import load_weights
from agentrl.errors import AgentRLError, ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

logger = logging.getLogger(__name__)

WORTH_WAITING_TOKENS = 16


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    prompt: NDArray[np.int64]
    sampling: Sampling
    session: str
    future: asyncio.Future[Completion]
    loop: asyncio.AbstractEventLoop
    draws: Draws
    begun: float
    row: int = -1
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def took(self, token_id: int, logprob: float, version: int) -> None:
        self.token_ids.append(token_id)
        self.logprobs.append(logprob)
        self.versions.append(version)

    def finish_reason(self, max_context: int) -> str | None:
        if self.token_ids[-1] in self.sampling.stop_token_ids:
            return "stop"
        full = len(self.prompt) + len(self.token_ids) >= max_context
        return "length" if full or len(self.token_ids) >= self.sampling.max_new_tokens else None


class SlotEngine:
    """``Engine`` on a Hugging Face causal LM in this process.

    ``version`` None: nothing is served until the first ``update_weights``. Temperature, top-p, top-k and seed are per
    request; ``Sampling`` knows no other values.
    """

    def __init__(
        self,
        model: Any,
        *,
        num_slots: int = 64,
        max_context: int = 0,
        version: int | None = None,
        url: str = "in-process",
    ) -> None:
        limit = int(getattr(model.config, "max_position_embeddings", 0) or 2**31)
        self.max_context = min(max_context or limit, limit)
        self.url = url
        self._decoder = Decoder(model, num_slots)
        self._model = model
        self._version = version
        self._weights_folder: Path | None = None
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting: list[Request] = []
        self._live: dict[int, Request] = {}
        self._sessions: dict[str, int] = {}
        self._last_used = [0.0] * num_slots
        self._paused = False
        self._closed = False
        self._failure: BaseException | None = None
        self._generated_tokens = 0
        self._thread = threading.Thread(target=self._decode_until_closed, name="decode", daemon=True)
        self._thread.start()

    # --- The event loop's side ---------------------------------------------------------------------------------------

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        if not prompt_ids:
            raise EngineError("the prompt is empty")
        if len(prompt_ids) >= self.max_context:
            raise ContextTooLong(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in {self.max_context} of context"
            )
        loop = asyncio.get_running_loop()
        request = Request(
            prompt=np.asarray(prompt_ids, dtype=np.int64),
            sampling=sampling,
            session=session,
            future=loop.create_future(),
            loop=loop,
            draws=Draws(sampling.seed),
            begun=time.monotonic(),
        )
        self._submit(lambda: self._waiting.append(request))
        try:
            async with asyncio.timeout(deadline_seconds):
                return await request.future
        except TimeoutError as error:
            raise EngineError(f"no completion within {deadline_seconds:g} s ({self._state()})") from error

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        return await self._on_thread(lambda: self._load(version, source))

    async def pause(self) -> None:
        await self._on_thread(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        await self._on_thread(lambda: setattr(self, "_paused", False))

    async def health(self) -> EngineHealth:
        return EngineHealth(
            ready=self._failure is None and self._version is not None and not self._paused,
            version=self._version,
            running=len(self._live),
            waiting=len(self._waiting),
            generated_tokens=self._generated_tokens,
            detail=self._state(),
        )

    async def close(self) -> None:
        self._commands.put(lambda: setattr(self, "_closed", True))
        await asyncio.to_thread(self._thread.join)

    async def _on_thread(self, work: Callable[[], Any]) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def run() -> None:
            try:
                result = work()
            except AgentRLError as error:
                loop.call_soon_threadsafe(refuse, future, error)
            else:
                loop.call_soon_threadsafe(resolve, future, result)

        self._submit(run)
        return await future

    def _submit(self, command: Callable[[], None]) -> None:
        if self._failure is not None or not self._thread.is_alive():
            raise EngineError(f"the engine has stopped: {self._failure or 'closed'}")
        self._commands.put(command)

    def _state(self) -> str:
        if self._failure is not None:
            return f"failed: {self._failure}"
        if self._version is None:
            return "waiting for the first weights"
        return "paused" if self._paused else "serving"

    # --- The decode thread's side ------------------------------------------------------------------------------------

    def _decode_until_closed(self) -> None:
        """Whatever breaks here breaks the engine: every request learns why, and health says so."""
        try:
            with torch.inference_mode():
                while not self._closed:
                    self._run_commands()
                    if self._version is None or self._paused:
                        continue
                    self._drop_cancelled()
                    self._admit()
                    self._step()
        except BaseException as error:
            logger.exception("the decode thread failed")
            self._failure = error
        for request in (*self._waiting, *self._live.values()):
            reason = EngineError(f"the engine stopped: {self._failure or 'closed'}")
            request.loop.call_soon_threadsafe(refuse, request.future, reason)

    def _run_commands(self) -> None:
        """Run what is queued; wait for a command when there is nothing to decode."""
        busy = bool(self._live or self._waiting) and self._version is not None and not self._paused
        try:
            command = self._commands.get(block=not busy)
            while True:
                command()
                command = self._commands.get_nowait()
        except queue.Empty:
            return

    def _drop_cancelled(self) -> None:
        self._waiting = [request for request in self._waiting if not request.future.done()]
        for row, request in list(self._live.items()):
            if request.future.done():
                del self._live[row]
                self._keep(request)

    def _admit(self) -> None:
        """Prefill waiting requests while rows are free; siblings wait for the first of them and copy its prefix."""
        while self._waiting and len(self._live) < self._decoder.num_rows:
            batch: list[Request] = []
            for request in list(self._waiting):
                if len(self._live) == self._decoder.num_rows:
                    break
                if any(worth_waiting(request.prompt, leader.prompt, self._best_prefix(request)[1]) for leader in batch):
                    continue
                self._place(request)
                batch.append(request)
            self._waiting = [request for request in self._waiting if request.row < 0]
            drawn = self._decoder.prefill(
                [request.row for request in batch],
                [request.prompt for request in batch],
                [request.sampling for request in batch],
                [request.draws.next() for request in batch],
            )
            self._took(batch, *drawn)

    def _best_prefix(self, request: Request) -> tuple[int, int]:
        """Row that holds the longest usable prefix of the prompt, and its length."""
        assert self._version is not None
        shared = self._decoder.shared_prefixes(request.prompt, self._version)
        row = int(shared.argmax())
        return row, int(shared[row])

    def _place(self, request: Request) -> None:
        """Give the request a row: its session's, an unused one, or the one idle for longest."""
        assert self._version is not None
        source, num_shared = self._best_prefix(request)
        own = self._sessions.get(request.session, -1)
        idle = [row for row in range(self._decoder.num_rows) if row not in self._live]
        row = (
            own
            if own in idle
            else min(idle, key=lambda row: (self._decoder.length[row] > 0, self._last_used[row], row))
        )
        self._forget_session(row)
        if num_shared == 0:
            self._decoder.forget(row)
        self._decoder.adopt(row, source if num_shared else row, num_shared, self._version)
        request.row, request.cached_tokens = row, num_shared
        self._live[row] = request

    def _step(self) -> None:
        if not self._live:
            return
        rows = sorted(self._live)
        requests = [self._live[row] for row in rows]
        drawn = self._decoder.step(
            rows,
            [request.token_ids[-1] for request in requests],
            [request.sampling for request in requests],
            [request.draws.next() for request in requests],
        )
        self._took(requests, *drawn)

    def _took(self, requests: Sequence[Request], token_ids: Sequence[int], logprobs: Sequence[float]) -> None:
        assert self._version is not None
        self._generated_tokens += len(requests)
        for request, token_id, logprob in zip(requests, token_ids, logprobs, strict=True):
            request.took(token_id, logprob, self._version)
            reason = request.finish_reason(self.max_context)
            if reason is not None:
                del self._live[request.row]
                self._keep(request)
                completion = completed(request, reason, self.url)
                request.loop.call_soon_threadsafe(resolve, request.future, completion)

    def _keep(self, request: Request) -> None:
        """The row stays as it is, for the session's next turn and for siblings, until another request needs it."""
        self._sessions[request.session] = request.row
        self._last_used[request.row] = time.monotonic()

    def _forget_session(self, row: int) -> None:
        for session in [session for session, held in self._sessions.items() if held == row]:
            del self._sessions[session]

    def _load(self, version: int, source: WeightSource) -> Confirmation:
        """Change the weights between two steps; on a canary that differs, go back to the weights before."""
        load_weights(self._model, source.path)
        difference = self._canary_difference(source)
        if source.canary is not None and difference is not None and not difference <= source.canary.tolerance:
            self._go_back()
            raise WeightsError(
                f"{self.url}: log-probs of the canary differ by {difference:.3g} under version {version} "
                f"(tolerance {source.canary.tolerance:g}); the engine did not become what the trainer sent"
            )
        self._version, self._weights_folder = version, Path(source.path)
        for row in range(self._decoder.num_rows):
            if row in self._live:
                self._decoder.version[row] = NO_VERSION
            else:
                self._decoder.forget(row)
        self._sessions.clear()
        return Confirmation(url=self.url, version=version, canary_difference=difference)

    def _canary_difference(self, source: WeightSource) -> float | None:
        if source.canary is None:
            return None
        own = self._decoder.score(source.canary.token_ids)
        return max(abs(a - b) for a, b in zip(own, source.canary.logprobs, strict=True))

    def _go_back(self) -> None:
        """Serve the version before again, or nothing when its weights are gone."""
        if self._weights_folder is not None and self._weights_folder.is_dir():
            load_weights(self._model, str(self._weights_folder))
        else:
            self._version = None


def worth_waiting(prompt: NDArray[np.int64], leader: NDArray[np.int64], num_shared: int) -> bool:
    """Whether the leader's prefill will save clearly more of ``prompt`` than the ``num_shared`` tokens there are."""
    needed = num_shared + WORTH_WAITING_TOKENS
    return min(len(prompt) - 1, len(leader)) >= needed and bool((prompt[:needed] == leader[:needed]).all())


def completed(request: Request, finish_reason: str, url: str) -> Completion:
    return Completion(
        token_ids=tuple(request.token_ids),
        logprobs=tuple(request.logprobs),
        version_spans=spans_of(request.versions),
        finish_reason=finish_reason,
        prompt_tokens=len(request.prompt),
        cached_tokens=request.cached_tokens,
        service=url,
        latency_seconds=time.monotonic() - request.begun,
    )


def resolve(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


def refuse(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
