"""The embedded engine: an ``Engine`` whose decode thread batches all live sequences of one model.

Everything that touches the model runs in that thread: a step, then what was asked for between two steps (new weights,
pause), then new requests. The asyncio side submits and awaits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import torch

from agentrl.engine.base import Confirmation, EngineHealth, RequestRefused, WeightSource
from agentrl.engine.decoder import Decoder, Request
from agentrl.engine.slot_model import SlotModel
from agentrl.engine.weights import read_weights
from agentrl.engine.wire import sampling_problems
from agentrl.errors import ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

logger = logging.getLogger(__name__)


class SlotEngine:
    """``version`` None: the weights that were loaded are not served; requests wait for the first publish.

    Safe for several event loops. A seeded request samples the same tokens whatever else is in the batch, up to
    rounding of the logits by batch shape (about 1e-7).
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
        self._model = SlotModel(model, num_slots=num_slots, max_context=max_context)
        self.max_context = self._model.max_context
        self.url = url
        self._decoder = Decoder(self._model, version=version, service=url)
        self._paused = False
        self._closing = False
        self._failure = ""
        self._submitted: list[Request] = []
        self._commands: list[tuple[Callable[[], Any], Future[Any]]] = []
        self._cancellations = 0
        self._changed = threading.Condition()
        self._updating = asyncio.Lock()
        self._thread = threading.Thread(target=self._run, name="slot-decoder", daemon=True)
        self._thread.start()

    @property
    def version(self) -> int | None:
        return self._decoder.version

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        """See ``Engine``. A generation that reaches the end of the context finishes there, as ``length``."""
        self._check(prompt_ids, sampling)
        limit = min(sampling.max_new_tokens, self.max_context - len(prompt_ids))
        request = Request(prompt_ids=list(prompt_ids), sampling=sampling, session=session, limit=limit)
        request.future.add_done_callback(self._note_cancellation)
        with self._changed:
            self._require_running()
            self._submitted.append(request)
            self._changed.notify()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(request.future), deadline_seconds)
        except TimeoutError:
            seen = f"{len(request.token_ids)} tokens sampled, {self._state()}"
            raise EngineError(f"no completion within {deadline_seconds:g} s ({seen})") from None

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        """Read ``source`` beside the decoding, then change the weights between two steps; see ``Engine``.

        When anything is wrong with them, a canary included, the weights before stay in force.
        """
        where = f"{self.url}, version {version} from {source.path}"
        async with self._updating:
            fresh = await asyncio.to_thread(read_weights, self._model.model, source.path)
            difference = await self._command(lambda: self._decoder.adopt(version, fresh, source.canary, where=where))
        return Confirmation(url=self.url, version=version, canary_difference=difference)

    async def pause(self) -> None:
        """Return once no step runs; requests in flight keep what they have."""
        await self._command(lambda: setattr(self, "_paused", True))

    async def resume(self) -> None:
        await self._command(lambda: setattr(self, "_paused", False))

    async def health(self) -> EngineHealth:
        return EngineHealth(
            ready=self._state() == "serving",
            version=self.version,
            running=self._decoder.num_live,
            waiting=len(self._decoder.waiting) + len(self._submitted),
            generated_tokens=self._decoder.num_generated,
            detail=self._state(),
        )

    async def close(self) -> None:
        """End the decode thread; requests still open fail."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    def _state(self) -> str:
        if self._failure:
            return f"failed: {self._failure}"
        if self._closing:
            return "stopping"
        if self.version is None:
            return "waiting for the first weights"
        return "paused" if self._paused else "serving"

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        """What a forward pass could not take must not reach the decode thread, where it would end every request."""
        if problems := sampling_problems(sampling):
            raise RequestRefused("; ".join(f"sampling.{problem}" for problem in problems))
        if not len(prompt_ids):
            raise RequestRefused("the prompt is empty")
        if len(prompt_ids) >= self.max_context:
            raise ContextTooLong(
                f"a prompt of {len(prompt_ids)} tokens leaves no room in {self.max_context} of context"
            )
        wrong = next(
            (id for id in (min(prompt_ids), max(prompt_ids)) if not 0 <= id < self._model.vocabulary_size), None
        )
        if wrong is not None:
            raise RequestRefused(f"token id {wrong} is outside the model's vocabulary of {self._model.vocabulary_size}")

    def _require_running(self) -> None:
        if self._failure or self._closing:
            raise EngineError(f"the engine has stopped: {self._failure or 'closed'}")

    async def _command(self, action: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        with self._changed:
            self._require_running()
            self._commands.append((action, future))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def _note_cancellation(self, future: Future[Completion]) -> None:
        if future.cancelled():
            with self._changed:
                self._cancellations += 1
                self._changed.notify()

    # --- The decode thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._between_steps():
                    if self._can_step():
                        self._decoder.decode()
                        self._decoder.admit()
        except BaseException as died:  # those who wait for this thread must hear of its end, whatever ended it
            self._failure = f"{type(died).__name__}: {died}"
            logger.exception("the decode thread failed")
        finally:
            self._fail_all()

    def _between_steps(self) -> bool:
        """Wait until there is something to do; take in what was asked for. False once the engine closes."""
        with self._changed:
            while not (self._closing or self._commands or self._cancellations or self._can_step()):
                self._changed.wait()
            commands, self._commands = self._commands, []
            self._decoder.waiting += self._submitted
            self._submitted = []
            cancellations, self._cancellations = self._cancellations, 0
        if cancellations:
            self._decoder.drop_cancelled()
        for action, future in commands:
            run_command(action, future)
        return not self._closing

    def _can_step(self) -> bool:
        if self._paused or self._decoder.version is None:
            return False
        return bool(self._decoder.num_live or self._decoder.waiting or self._submitted)

    def _fail_all(self) -> None:
        error = EngineError(f"the engine stopped: {self._failure or 'closed'}")
        with self._changed:
            self._closing = True
            commands, self._commands = self._commands, []
            self._decoder.waiting += self._submitted
            self._submitted = []
        self._decoder.fail_all(error)
        for _, future in commands:
            if not future.cancelled():
                future.set_exception(error)


def run_command(action: Callable[[], Any], future: Future[Any]) -> None:
    """A refusal is the asker's; anything else ends the thread, and the asker hears of it too."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(action())
    except WeightsError as refused:
        future.set_exception(refused)
    except BaseException as died:
        future.set_exception(EngineError(f"the engine stopped: {type(died).__name__}: {died}"))
        raise
