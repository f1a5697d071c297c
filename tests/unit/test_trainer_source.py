"""The trainer on a real store, with a small sampler that scores random tokens under the published weights."""

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_help import KeepingPublisher, ids, write_model

from agentrl.algo import GroupMember, judge_group
from agentrl.batch.rows import build_row
from agentrl.config import AlgoOptions, Budget, CheckpointOptions, ModelOptions, OptimOptions
from agentrl.config.budget import Prices
from agentrl.errors import ConfigError, WaitTimeout
from agentrl.models.load import Policy, load_policy
from agentrl.models.logprobs import token_logprobs
from agentrl.store import Admission, BlockingStore, open_store
from agentrl.telemetry import Telemetry
from agentrl.trainer.loop import TrainConfig, train
from agentrl.trainer.progress import Progress
from agentrl.trainer.source import SourceOptions, StoreBatchSource
from agentrl.types import (
    Claim,
    DispatchedSamplingTask,
    Outcome,
    Record,
    RecordStatus,
    Sampling,
    Score,
    Split,
    Task,
    VersionSpan,
    Worker,
)
from agentrl.weights.base import Publication

GROUPS, SIBLINGS = 2, 3
PRICES = {"per_million_prompt_tokens": 0.0, "per_million_sampled_tokens": 0.0, "per_call": 0.5}
BUDGET = Budget(limits={"calls": 1000.0}, prices=Prices(currency="EUR", model=PRICES, tools={}))


def open_run(tmp_path: Path) -> BlockingStore:
    return BlockingStore(open_store(f"sqlite:///{tmp_path / 'run.db'}", run="run"))


def push(store: BlockingStore, num_tasks: int) -> None:
    tasks = [Task(task_id=f"q{i}", query="?", answer="!", run="run", num_slots=SIBLINGS) for i in range(num_tasks)]
    store.call(store.store.add_tasks, tasks)
    store.call(store.store.end_stream, Split.TRAIN)


def source_options(**more: Any) -> SourceOptions:
    values: dict[str, Any] = {
        "groups_per_step": GROUPS,
        "algo": AlgoOptions(),
        "optim": OptimOptions(learning_rate=1e-3, max_tokens=500),
        "max_tokens_per_microbatch": 80,
        "wait_timeout_seconds": 30.0,
    }
    return SourceOptions(**values | more)


def train_config(tmp_path: Path, **more: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "folder": tmp_path / "run",
        "total_steps": 0,
        "model": ModelOptions(device="cpu", model_name_or_path=str(tmp_path / "model")),
        "optim": OptimOptions(learning_rate=1e-3),
        "algo": AlgoOptions(),
        "checkpoint": CheckpointOptions(save_steps=2),
    }
    return TrainConfig(**values | more)


class Steps:
    """A sink that keeps the step events."""

    def __init__(self) -> None:
        self.events: list[Mapping[str, Any]] = []

    def write(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def close(self) -> None: ...


class TinySampler:
    """Plays groups in a thread: random replies of one or two turns, log-probs of the newest published weights.

    ``flat`` tasks give all siblings the same score.
    """

    def __init__(self, tmp_path: Path, publisher: KeepingPublisher, flat: tuple[str, ...] = ()) -> None:
        self._store = open_run(tmp_path)
        self._publisher = publisher
        self._policy = load_policy(tmp_path / "model", ModelOptions(device="cpu"))
        self._flat = flat
        self._worker = Worker(id="tiny", kind="sampler", host="here", pid=1)

    def play_until(self, stop: threading.Event) -> None:
        store = self._store
        store.call(store.store.heartbeat, self._worker)
        admission = Admission(groups_per_step=GROUPS, max_staleness=1)
        while not stop.is_set():
            claim = store.call(store.store.claim, "tiny", splits=(Split.TRAIN,), admission=admission)
            if claim is None:
                stop.wait(0.01)
            else:
                self._play(claim)
        store.close()

    def _play(self, claim: Claim) -> None:
        latest = self._store.call(self._store.store.latest_version)
        assert latest is not None
        version = latest.version
        self._policy.model.load_state_dict(self._publisher.weights[version], strict=False)
        rng = random.Random(f"{claim.task.id}/{version}")
        prompt = ids(rng, 4, 6)
        members, rows = [], {}
        for slot in range(SIBLINGS):
            score = 1.0 if claim.task.task_id in self._flat else float(slot % 2)
            record = f"{claim.task.id}/{slot}/{claim.claim_no}"
            turns = self._turns(rng, record, prompt, version)
            for turn in turns:
                self._store.call(self._store.store.append_turn, claim, turn)
            done = Record(
                task=claim.task.id,
                slot=slot,
                attempt=claim.claim_no,
                status=RecordStatus.SCORED,
                outcome=Outcome.ANSWERED,
                scores=(Score(value=score),),
            )
            self._store.call(self._store.store.finish_record, claim, done)
            members.append(GroupMember(slot=slot, score=score, valid=True))
            rows[slot] = (done, turns)
        verdict = judge_group(members, AlgoOptions())
        trained = [
            build_row(
                task=claim.task.id,
                seq=claim.task.seq,
                slot=slot,
                record=rows[slot][0].id,
                turns=rows[slot][1],
                turn_advantages=[advantage] * len(rows[slot][1]),
            )
            for slot, advantage in verdict.slots.items()
            if isinstance(advantage, float)
        ]
        self._store.call(self._store.store.finalize_group, claim, verdict, trained)

    def _turns(
        self, rng: random.Random, record: str, prompt: tuple[int, ...], version: int
    ) -> list[DispatchedSamplingTask]:
        turns: list[DispatchedSamplingTask] = []
        context: tuple[int, ...] = ()
        for number in range(rng.randint(1, 2)):
            delta = prompt if number == 0 else ids(rng, 1, 3)
            sampled = ids(rng, 2, 5)
            context += delta
            turns.append(
                DispatchedSamplingTask(
                    record=record,
                    turn=number,
                    parent=number - 1 if number else None,
                    prompt_ids_delta=delta,
                    token_ids=sampled,
                    logprobs=score(self._policy, context, sampled),
                    version_spans=(VersionSpan(start=0, end=len(sampled), version=version),),
                    sampling=Sampling(max_new_tokens=8),
                    finish_reason="stop",
                )
            )
            context += sampled
        return turns


@torch.no_grad()
def score(policy: Policy, context: tuple[int, ...], sampled: tuple[int, ...]) -> tuple[float, ...]:
    """As an engine does: one sequence, no tree."""
    token_ids = torch.tensor(context + sampled)
    length = len(token_ids)
    hidden = policy.hidden(token_ids, torch.arange(length), torch.full((length,), length))
    logprobs, _ = token_logprobs(hidden[:-1], policy.lm_head_VD, token_ids[1:], torch.ones(length - 1))
    return tuple(logprobs[-len(sampled) :].tolist())


@contextmanager
def sampling(tmp_path: Path, publisher: KeepingPublisher, flat: tuple[str, ...] = ()) -> Iterator[None]:
    stop = threading.Event()
    sampler = TinySampler(tmp_path, publisher, flat)
    thread = threading.Thread(target=sampler.play_until, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_run_trains_every_group_with_a_signal_and_ends_with_the_stream(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    publisher, steps = KeepingPublisher(), Steps()
    with open_run(tmp_path) as store, sampling(tmp_path, publisher, flat=("q1",)):
        push(store, 6)
        source = StoreBatchSource(store, source_options(budget=BUDGET))
        done = train(train_config(tmp_path), source, publisher, Telemetry([steps]))
        source.close()
        spent = store.call(store.store.spending)
        states = store.call(store.store.row_states)  # type: ignore[attr-defined]
        versions = store.call(store.store.find, "version")
        workers = store.call(store.store.workers)

    assert done == Progress(step=3, version=3)
    assert [(v.version, v.step, v.parent) for v in versions] == [(0, 0, None), (1, 1, 0), (2, 2, 1), (3, 3, 2)]
    assert len(states) == 5 * SIBLINGS
    assert {str(status) for _, status, _, _ in states} == {"trained"}
    assert [worker.kind for worker in workers] == ["sampler"]
    assert [event["groups"] for event in steps.events] == [2, 2, 1]
    # Four groups of five end before or with the steps' highest seq; every score is counted once.
    assert sum(event.get("reward_records", 0) for event in steps.events) == 6 * SIBLINGS
    assert sum(event.get("reward", 0) * event.get("reward_records", 0) for event in steps.events) == pytest.approx(
        5 * 1 + SIBLINGS
    )
    for event in steps.events:
        assert 0 <= event["staleness"] <= event["staleness_max"] <= 2
        assert event["seconds/wait_batch"] >= 0
        assert event["trained_tokens"] == event["batch/trained_tokens"]
        assert event["budget/calls"] == pytest.approx(event["spent/calls"] / 1000)
        assert event["spent/money"] == pytest.approx(event["spent/calls"] / 2)
    calls = [event["spent/calls"] for event in steps.events]
    assert 0 < calls[0] < calls[-1] == spent["calls"]
    assert sum(event["logprob_gap_tokens"] for event in steps.events) > 0
    assert max(event.get("logprob_gap_max", 0.0) for event in steps.events) < 1e-4


class Crash(Exception):
    pass


class CrashingPublisher(KeepingPublisher):
    """The engine takes the version, then the trainer dies before it can register it."""

    def __init__(self, at_version: int) -> None:
        super().__init__()
        self._at_version = at_version

    def publish(self, tensors: Any, *, version: int, canary: Any) -> Publication:
        publication = super().publish(tensors, version=version, canary=canary)
        if version == self._at_version:
            raise Crash
        return publication


@pytest.mark.parametrize(
    ("crash_at", "saved_step", "lineage"),
    [
        (3, 2, [(0, 0, None), (1, 1, 0), (2, 2, 1), (4, 3, 2), (5, 4, 4), (6, 5, 5)]),
        (2, 0, [(0, 0, None), (1, 1, 0), (3, 1, 0), (4, 2, 3), (5, 3, 4), (6, 4, 5), (7, 5, 6)]),
    ],
    ids=["after a checkpoint", "before the first checkpoint"],
)
def test_after_a_crash_no_version_is_used_again_and_no_row_is_trained_twice(
    crash_at: int, saved_step: int, lineage: list[tuple[int, int, int | None]], tmp_path: Path
) -> None:
    write_model(tmp_path / "model")
    crashing, publisher, steps = CrashingPublisher(crash_at), KeepingPublisher(), Steps()
    with open_run(tmp_path) as store:
        push(store, 10)
        with sampling(tmp_path, crashing):
            source = StoreBatchSource(store, source_options())
            with pytest.raises(Crash):
                train(train_config(tmp_path), source, crashing, Telemetry([]))
            source.close()
        publisher.weights = dict(crashing.weights)
        with sampling(tmp_path, publisher):
            source = StoreBatchSource(store, source_options())
            done = train(train_config(tmp_path, resume="auto"), source, publisher, Telemetry([steps]))
            source.close()
        versions = store.call(store.store.find, "version")
        states = store.call(store.store.row_states)  # type: ignore[attr-defined]

    assert [event["step"] for event in steps.events] == list(range(saved_step + 1, 6))
    assert done == Progress(step=5, version=lineage[-1][0])
    assert [(v.version, v.step, v.parent) for v in versions] == lineage
    trained = [record for record, status, _, _ in states if status == "trained"]
    assert len(trained) == len(set(trained)) == 10 * SIBLINGS


def test_waiting_ends_with_a_message_that_says_what_is_missing(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        push(store, 3)
        source = StoreBatchSource(store, source_options(wait_timeout_seconds=0.2))
        publish(source, 0)
        source.rewind(Progress(), {})
        message = (
            r"waited 0\.2 s for 2 finished groups of step 1\. Training groups: 0 completed, 0 abandoned, 0 running, "
            r"3 created; 0 rows are ready\. No sampler ever started"
        )
        with pytest.raises(WaitTimeout, match=message):
            source.next(Progress())
        store.call(store.store.heartbeat, Worker(id="s1", kind="sampler", host="h", pid=1, waiting_for="a slot"))
        with pytest.raises(WaitTimeout, match=r"Samplers: s1 beat 0 s ago, waits for a slot\."):
            source.next(Progress())
        source.close()


def publish(source: StoreBatchSource, version: int) -> None:
    parent = version - 1 if version else None
    progress = Progress(step=version, version=version)
    source.published(Publication(version=version, tensor_hash="", confirmations=()), progress, parent)


def test_a_stop_ends_the_wait(tmp_path: Path) -> None:
    stop = threading.Event()
    with open_run(tmp_path) as store:
        push(store, 3)
        source = StoreBatchSource(store, source_options(), stop=stop)
        publish(source, 0)
        source.rewind(Progress(), {})
        threading.Timer(0.1, stop.set).start()
        assert source.next(Progress()) is None
        source.close()


def test_groups_without_a_token_to_train_are_dropped_not_waited_for(tmp_path: Path) -> None:
    write_model(tmp_path / "model")
    publisher, steps = KeepingPublisher(), Steps()
    options = source_options(optim=OptimOptions(max_tokens=1))
    with open_run(tmp_path) as store, sampling(tmp_path, publisher):
        push(store, 2)
        source = StoreBatchSource(store, options)
        done = train(train_config(tmp_path), source, publisher, Telemetry([steps]))
        source.close()
        states = store.call(store.store.row_states)  # type: ignore[attr-defined]
    assert done == Progress()
    assert {(str(status), reason) for _, status, _, reason in states} == {("dropped", "nothing_to_train")}


def test_a_used_run_is_not_begun_again_and_a_foreign_checkpoint_is_refused(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        source = StoreBatchSource(store, source_options())
        source.check(Progress(), resumed=False)
        publish(source, 0)
        source.check(Progress(), resumed=False)
        publish(source, 1)
        with pytest.raises(ConfigError, match="run run has trained to step 1 already"):
            source.check(Progress(), resumed=False)
        source.check(Progress(step=1, version=1), resumed=True)
        with pytest.raises(ConfigError, match="it is of another run"):
            source.check(Progress(step=7, version=9), resumed=True)
        source.close()


def test_a_reserved_number_is_never_given_again(tmp_path: Path) -> None:
    with open_run(tmp_path) as store:
        source = StoreBatchSource(store, source_options())
        publish(source, 0)
        assert source.next_version() == 1
        assert source.next_version() == 2
        source.close()
        again = StoreBatchSource(store, source_options())
        assert again.next_version() == 3
        again.close()
