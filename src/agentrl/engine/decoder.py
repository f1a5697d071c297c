"""Which sequence sits in which key-value row: admission, prefix reuse, batched decode steps, finishing.

Rows ``0 .. num_live`` are decoded together; behind them lie the rows that finished sessions left. Used by one thread.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field

from torch import Tensor

from agentrl.engine.base import Canary
from agentrl.engine.sampling import SamplingPlan, sample
from agentrl.engine.slot_model import SlotModel
from agentrl.errors import EngineError
from agentrl.types import Completion, Sampling, VersionSpan

WAVE_TOKENS = 4096
"""Prompt tokens, padding included, of the prompts that are prefilled together between two decode steps."""
WORTH_WAITING = 8
"""A prompt waits one wave for a sibling of the wave when it can take over so many more tokens from it."""


@dataclass(slots=True, kw_only=True, eq=False)
class Request:
    """One generation; ``limit`` is the most tokens it may sample."""

    prompt_ids: list[int]
    sampling: Sampling
    session: str
    limit: int
    future: Future[Completion] = field(default_factory=Future)
    began: float = field(default_factory=time.perf_counter)
    entered: float = 0.0
    """When it was given a row."""
    cached_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    """(index of its first token, version) of every span."""
    uniform: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        self.uniform = random.Random(self.sampling.seed).random

    def take(self, token: int, logprob: float, version: int) -> str:
        """Keep one sampled token; return the finish reason, empty while the generation goes on."""
        if not self.starts or self.starts[-1][1] != version:
            self.starts.append((len(self.token_ids), version))
        self.token_ids.append(token)
        self.logprobs.append(logprob)
        if token in self.sampling.stop_token_ids:
            return "stop"
        return "length" if len(self.token_ids) >= self.limit else ""

    def completion(self, finish_reason: str, service: str) -> Completion:
        ends = [start for start, _ in self.starts[1:]] + [len(self.token_ids)]
        spans = [
            VersionSpan(start=start, end=end, version=version)
            for (start, version), end in zip(self.starts, ends, strict=True)
        ]
        return Completion(
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            version_spans=tuple(spans),
            finish_reason=finish_reason,
            prompt_tokens=len(self.prompt_ids),
            cached_tokens=self.cached_tokens,
            service=service,
            latency_seconds=time.perf_counter() - self.began,
            queue_seconds=self.entered - self.began,
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """``ids`` are the tokens whose keys and values it holds: a prefix while these ``weights`` are in force."""

    index: int
    ids: list[int] = field(default_factory=list)
    weights: int = 0
    session: str = ""
    used: int = 0
    request: Request | None = None


class Decoder:
    """``version`` is what tokens sampled now carry. Nothing here blocks or waits."""

    def __init__(self, model: SlotModel, *, version: int | None, service: str = "") -> None:
        self.model = model
        self.version = version
        self.service = service
        self.waiting: list[Request] = []
        self.num_live = 0
        self.num_generated = 0
        self._rows = [Row(index=index) for index in range(model.num_slots)]
        # Counts changes of weights: a version number that comes twice must not revive old prefixes.
        self._weights = 0
        self._clock = 0
        self._plan: SamplingPlan | None = None

    @property
    def live(self) -> list[Row]:
        return self._rows[: self.num_live]

    def adopt(self, version: int, fresh: dict[str, Tensor], canary: Canary | None, *, where: str) -> float | None:
        """Change the weights. Live rows go on with what they hold; under its old number it is no prefix any more."""
        difference = self.model.adopt(fresh, canary, where=where)
        self.version = version
        self._weights += 1
        return difference

    def drop_cancelled(self) -> None:
        self.waiting = [request for request in self.waiting if not request.future.cancelled()]
        for row in reversed(self.live):
            if requested(row).future.cancelled():
                self._leave(row)

    def decode(self) -> None:
        """One token for every live row."""
        rows = self.live
        if not rows:
            return
        new_ids = [[requested(row).token_ids[-1]] for row in rows]
        logits = self.model.forward(0, new_ids, [len(row.ids) for row in rows])
        for row, (token,) in zip(rows, new_ids, strict=True):
            row.ids.append(token)
        if self._plan is None:
            self._plan = SamplingPlan.of([requested(row).sampling for row in rows], self.model.device)
        self._sample(rows, logits, self._plan)

    def admit(self) -> None:
        """Prefill one wave of waiting prompts and sample their first tokens."""
        wave: list[Row] = []
        deferred: list[Request] = []
        widest = 0
        for position, request in enumerate(self.waiting):
            if self.num_live == len(self._rows):
                deferred += self.waiting[position:]
                break
            source, shared = self._best_prefix(request)
            widest_then = max(widest, len(request.prompt_ids) - shared)
            full = wave and widest_then * (len(wave) + 1) > WAVE_TOKENS
            sibling = any(shares(requested(row).prompt_ids, request.prompt_ids, shared + WORTH_WAITING) for row in wave)
            if full or sibling:
                deferred.append(request)
                continue
            wave.append(self._enter(request, source, shared))
            widest = widest_then
        self.waiting = deferred
        if wave:
            self._prefill(wave)

    def fail_all(self, error: EngineError) -> None:
        for request in [*(requested(row) for row in self.live), *self.waiting]:
            settle(request.future, error)
        self.waiting = []

    def _prefill(self, wave: list[Row]) -> None:
        new_ids = [requested(row).prompt_ids[len(row.ids) :] for row in wave]
        logits = self.model.forward(wave[0].index, new_ids, [len(row.ids) for row in wave])
        for row, ids in zip(wave, new_ids, strict=True):
            row.ids += ids
        samplings = [requested(row).sampling for row in wave]
        self._sample(wave, logits, SamplingPlan.of(samplings, self.model.device))

    def _sample(self, rows: Sequence[Row], logits: Tensor, plan: SamplingPlan) -> None:
        assert self.version is not None
        tokens, logprobs = sample(logits, plan, [requested(row).uniform() for row in rows])
        self.num_generated += len(rows)
        # From the last row to the first: a row that leaves swaps places with one that was done before it.
        for row, token, logprob in reversed(list(zip(rows, tokens, logprobs, strict=True))):
            request = requested(row)
            if logprob - logprob != 0:
                error = EngineError(f"the weights of version {self.version} give a log-prob of {logprob}: not finite")
                self._finish(row, error)
            elif reason := request.take(token, logprob, self.version):
                self._finish(row, request.completion(reason, self.service))

    def _best_prefix(self, request: Request) -> tuple[Row | None, int]:
        """The row that holds most of the prompt; its last token is always computed anew, for its logits."""
        limit = len(request.prompt_ids) - 1
        best, shared = None, 0
        own_first = sorted(self._rows, key=lambda row: row.session != request.session)
        for row in own_first:
            if row.weights != self._weights or not shares(row.ids, request.prompt_ids, shared + 1):
                continue
            best, shared = row, min(common(row.ids, request.prompt_ids), limit)
            if shared == limit:
                break
        return (best, shared) if shared else (None, 0)

    def _enter(self, request: Request, source: Row | None, shared: int) -> Row:
        row = self._choose(request, source)
        self._swap(row, self._rows[self.num_live])
        self.num_live += 1
        self._plan = None
        if source is not None and source is not row:
            self.model.cache.copy_prefix(source.index, row.index, shared)
        row.ids = request.prompt_ids[:shared]
        row.weights = self._weights
        row.session = request.session
        row.request = request
        request.cached_tokens = shared
        request.entered = time.perf_counter()
        return row

    def _choose(self, request: Request, source: Row | None) -> Row:
        """Its own kept row, else an empty one, else the one that was idle longest."""
        idle = self._rows[self.num_live :]
        own = [row for row in idle if row.session == request.session and row.ids]
        if own:
            return own[0]
        return min(idle, key=lambda row: (row.weights == self._weights and bool(row.ids), row.used))

    def _finish(self, row: Row, result: Completion | EngineError) -> None:
        request = requested(row)
        self._leave(row)
        settle(request.future, result)

    def _leave(self, row: Row) -> None:
        """Out of the live rows. What it holds stays as the prefix of its session's next turn."""
        self._clock += 1
        for other in self._rows[self.num_live :]:
            if other.session == row.session:
                other.ids, other.session = [], ""
        row.used = self._clock
        row.request = None
        self.num_live -= 1
        self._plan = None
        self._swap(row, self._rows[self.num_live])

    def _swap(self, one: Row, other: Row) -> None:
        if one is other:
            return
        self.model.cache.swap(one.index, other.index, max(len(one.ids), len(other.ids)))
        self._rows[one.index], self._rows[other.index] = other, one
        one.index, other.index = other.index, one.index


def requested(row: Row) -> Request:
    assert row.request is not None
    return row.request


def settle(future: Future[Completion], result: Completion | EngineError) -> None:
    try:
        if isinstance(result, EngineError):
            future.set_exception(result)
        else:
            future.set_result(result)
    except InvalidStateError:
        assert future.cancelled()


def shares(one: Sequence[int], other: Sequence[int], length: int) -> bool:
    """Do the first ``length`` tokens exist in both and agree?"""
    return len(one) >= length and len(other) >= length and one[:length] == other[:length]


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
