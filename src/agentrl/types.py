"""The documents that pass between rooms: tasks, turns, records, training rows, and what engines and tools answer.

Standard library only, so that every process can import it. The persisted documents keep the names users look for in the
database: ``Task``, ``Record``, ``DispatchedSamplingTask``, ``DBRecordData``, ``WeightVersion``, ``InferenceService``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

Message = dict[str, Any]
"""One chat message in OpenAI's form: ``role``, ``content`` and, where they apply, ``tool_calls``, ``tool_call_id``."""


class Split(StrEnum):
    TRAIN = "train"
    EVAL = "eval"
    TEST = "test"


class Outcome(StrEnum):
    """Why an episode stopped. The first six are valid trajectories, the last three are outside every baseline."""

    ANSWERED = "answered"
    NO_ANSWER = "no_answer"
    TURNS_LIMIT = "turns_limit"
    CONTEXT_LIMIT = "context_limit"
    LENGTH_LIMIT = "length_limit"
    REPETITION = "repetition"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"

    @property
    def valid(self) -> bool:
        return self not in (Outcome.TIMEOUT, Outcome.ERROR, Outcome.CANCELLED)


class TaskStatus(StrEnum):
    CREATED = "created"
    RUNNING = "running"
    COMPLETED = "completed"
    ABANDONED = "abandoned"


class RecordStatus(StrEnum):
    RUNNING = "running"
    SCORED = "scored"
    UNSCORED = "unscored"
    FAILED = "failed"
    EXPIRED = "expired"
    ABANDONED = "abandoned"


class RowStatus(StrEnum):
    """State of a ``DBRecordData`` row; no other document has these."""

    READY = "ready"
    TAKEN = "taken"
    TRAINED = "trained"
    DROPPED = "dropped"


class Flag(StrEnum):
    """Facts about one turn, recorded at rollout and judged later by ``algo``."""

    TOOL_FAILED = "toolfailed"
    FORMAT_ERROR = "formaterror"
    REPEAT_ERROR = "repeaterror"
    SUMMARY = "summary"


class MaskCause(IntEnum):
    """Why a token is or is not trained. Only ``SAMPLED`` has mask 1."""

    CONTEXT = 0
    SAMPLED = 1
    FORCED = 2
    NO_LOGPROB = 3
    CANCELLED = 4
    FILTERED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Seconds by what they were spent on: of a turn, of a record (its turns and its score), of a group (its records).

    ``queue`` is the wait at the engine until it began, ``generate`` the rest of the model call, ``store`` the waits for
    writes, ``claim`` the wait of a worker until it was given the group. Calls of a turn and siblings of a group run
    side by side, so a group's sum exceeds the time on the clock.
    """

    render: float = 0.0
    queue: float = 0.0
    generate: float = 0.0
    tools: float = 0.0
    score: float = 0.0
    store: float = 0.0
    claim: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(
            render=self.render + other.render,
            queue=self.queue + other.queue,
            generate=self.generate + other.generate,
            tools=self.tools + other.tools,
            score=self.score + other.score,
            store=self.store + other.store,
            claim=self.claim + other.claim,
        )


# --- Tools and replies -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool as the model sees it. ``name`` matches ``^[A-Za-z0-9_-]{1,64}$`` and is unique in a tool set."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    server: str = ""
    idempotent: bool = False

    def as_openai(self) -> dict[str, Any]:
        function = {"name": self.name, "description": self.description, "parameters": dict(self.parameters)}
        return {"type": "function", "function": function}


class CallStatus(StrEnum):
    OK = "ok"
    MALFORMED = "malformed"
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One attempted call in a reply. ``reason`` is a sentence the model can act on unless ``status`` is ok.

    ``raw`` is the text of an attempt that has no usable arguments; empty otherwise.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    status: CallStatus = CallStatus.OK
    reason: str = ""
    repaired: bool = False
    raw: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a completion means: the parse of its text. The sampled ids stay the truth for training."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @property
    def malformed(self) -> bool:
        return any(call.status in (CallStatus.MALFORMED, CallStatus.BAD_ARGUMENTS) for call in self.calls)


class ResultStatus(StrEnum):
    OK = "ok"
    TOOL_ERROR = "tool_error"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    UNKNOWN_OUTCOME = "unknown_outcome"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    call_id: str
    name: str
    arguments: dict[str, Any] | None
    status: ResultStatus
    content: str
    truncated: bool = False
    latency_seconds: float = 0.0

    def as_message(self) -> Message:
        return {"role": "tool", "tool_call_id": self.call_id, "name": self.name, "content": self.content}


# --- Engine ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling values of one request; ``temperature`` 0 is greedy, ``top_k`` 0 and ``top_p`` 1 are off."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpan:
    """Sampled tokens ``start <= i < end`` of one completion came from the weights ``version``."""

    start: int
    end: int
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """Token-exact answer of an engine.

    ``token_ids`` are the sampled ids, the end token included when it was sampled; ``logprobs`` (nats, same length) are
    those of the distribution sampled from, at the request's temperature. ``version_spans`` cover ``token_ids`` exactly.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float]
    version_spans: tuple[VersionSpan, ...]
    finish_reason: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    service: str = ""
    latency_seconds: float = 0.0
    queue_seconds: float = 0.0
    """Of the latency: how long the request waited at the engine before it was worked on."""


# --- Persisted documents -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question in one epoch: a group of ``num_slots`` rollouts. ``id`` is ``run/split/epoch/task_id``."""

    task_id: str
    query: str
    answer: Any = None
    scorer: Any = "agentcpm"
    answer_schema: str = "answer"
    system_prompt: str | None = None
    query_prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    tools: tuple[str, ...] | None = None
    setup: tuple[dict[str, Any], ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    run: str = ""
    split: Split = Split.TRAIN
    epoch: int = 0
    num_slots: int = 1
    seq: int = -1
    status: TaskStatus = TaskStatus.CREATED
    reason: str = ""
    claim_no: int = 0
    owner: str = ""

    @property
    def id(self) -> str:
        return f"{self.run}/{self.split}/{self.epoch}/{self.task_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedSamplingTask:
    """One model call and the tool results that followed: a turn.

    The context of the call is ``context(parent) + prompt_ids_delta``; the context it leaves for a child is that plus
    ``token_ids``. ``parent`` is null at a root and after a context reset (same record, new segment).
    """

    record: str
    turn: int
    parent: int | None
    prompt_ids_delta: Sequence[int]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    version_spans: tuple[VersionSpan, ...]
    sampling: Sampling
    finish_reason: str
    new_messages: tuple[Message, ...] = ()
    reply: Reply = field(default_factory=Reply)
    tool_results: tuple[ToolResult, ...] = ()
    flags: frozenset[Flag] = frozenset()
    status: str = "completed"
    service: str = ""
    latency_seconds: float = 0.0
    timings: Timings = Timings()

    @property
    def id(self) -> str:
        return f"{self.record}/{self.turn}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """``value`` is None when the answer could not be judged; ``reason`` then says why. Never a silent 0."""

    value: float | None
    reason: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)
    scorer: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One trajectory. ``id`` is ``task/slot/attempt``."""

    task: str
    slot: int
    attempt: int
    status: RecordStatus = RecordStatus.RUNNING
    reason: str = ""
    outcome: Outcome | None = None
    final_answer: str | None = None
    scores: tuple[Score, ...] = ()
    num_turns: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    """Calls that ended in an error, past their deadline or with an unknown outcome; not those that were not run."""
    min_version: int | None = None
    max_version: int | None = None
    error: Mapping[str, str] | None = None
    seconds: float = 0.0
    timings: Timings = Timings()

    @property
    def id(self) -> str:
        return f"{self.task}/{self.slot}/{self.attempt}"

    @property
    def score(self) -> float | None:
        return self.scores[-1].value if self.scores else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSpan:
    """Tokens ``start <= i < end`` of a row belong to this turn: its prompt delta, then what it sampled.

    ``parent`` is the index of the turn in the same row whose context it extends, -1 at a root.
    """

    start: int
    end: int
    parent: int
    advantage: float
    temperature: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DBRecordData:
    """What training consumes, one per trainable record: a turn tree over flat token arrays of length N.

    ``mask`` holds ``MaskCause`` codes, ``behavior_logprobs`` is NaN and ``versions`` is -1 where nothing was sampled.
    ``start_version``/``end_version`` are the lowest and highest version that sampled a token.
    """

    record: str
    task: str
    seq: int
    slot: int
    token_ids: Sequence[int]
    mask: Sequence[int]
    behavior_logprobs: Sequence[float]
    versions: Sequence[int]
    turns: tuple[TurnSpan, ...]
    start_version: int
    end_version: int
    reward: float = 0.0
    trained_count: int = 0

    @property
    def id(self) -> str:
        return self.record


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupVerdict:
    """Slot -> advantage, or the reason the slot is not trained. ``status`` ends the task."""

    slots: Mapping[int, float | str]
    status: TaskStatus = TaskStatus.COMPLETED
    reason: str = ""
    timings: Timings = Timings()


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightVersion:
    """One set of weights. Never reused: equals ``step`` until a restore, afterwards the highest ever + 1."""

    version: int
    step: int
    parent: int | None
    incarnation: str = ""
    tensor_hash: str = ""
    engines: tuple[str, ...] = ()
    canary_difference: float | None = None


class ServiceStatus(StrEnum):
    UP = "UP"
    DRAINING = "DRAINING"
    DOWN = "DOWN"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceService:
    url: str
    kind: str
    model: str
    status: ServiceStatus = ServiceStatus.UP
    policy_version: int | None = None
    running: int = 0
    """Requests it works on."""
    last_error: str = ""
    age_seconds: float = field(default=0.0, compare=False)
    """Seconds since it was registered last; filled by the store."""
    beat: float = field(default=0.0, compare=False)
    """When it was registered last, on the store's clock; filled by the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A live process of a run, as ``agentrl status`` and the lease rule see it.

    ``waiting_for`` says what it cannot go on without, and from whom; ``deadline`` is when it gives up, in seconds since
    the epoch. Its claims are the running groups that name it as their owner.
    """

    id: str
    kind: str
    host: str
    pid: int
    waiting_for: str = ""
    deadline: float | None = None
    alive: bool = True
    age_seconds: float = field(default=0.0, compare=False)
    """Seconds since its last heartbeat; filled by the store."""
    beat: float = 0.0
    """When it last beat, on the store's clock; filled by the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease on one group. Every write of its owner carries ``claim_no``; ``finished`` are terminal records kept."""

    task: Task
    worker: str
    claim_no: int
    finished: tuple[Record, ...] = ()
    next_attempt: Mapping[int, int] = field(default_factory=dict)
    waited_seconds: float = 0.0
    """How long the worker that holds it had to wait for it."""

    @property
    def id(self) -> str:
        """Of this lease: the same worker may lose a group and claim it again."""
        return f"{self.task.id}#{self.claim_no}"
