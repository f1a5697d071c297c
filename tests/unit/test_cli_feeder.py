"""The feed: which groups it pushes and when, how losses are replaced, and that a restart or a second feed changes
nothing. A sampler and a trainer are played move by move on a real store."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, questions, with_store

from agentrl.cli.feed import training_tasks
from agentrl.cli.feeder import PLANNED_GROUPS, Feed
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.rollout.budget import BUDGET_REACHED
from agentrl.store import Admission, Store, TakeRule
from agentrl.store.base import SET_ASIDE
from agentrl.types import (
    Claim,
    DBRecordData,
    GroupVerdict,
    Outcome,
    Record,
    RecordStatus,
    Score,
    Split,
    Task,
    TaskStatus,
    TurnSpan,
    WeightVersion,
)

DYNAMIC = ("--dynamic_sampling=true", "--groups_per_step=2")
Grade = Callable[[str], float]
"""``task_id -> mean score`` of its next group; 0 and 1 are no signal."""


class Play:
    """One run, move by move: ``feed`` pushes, ``sample`` plays what admission lets start, ``train`` takes steps."""

    def __init__(self, store: Store, config: RunConfig, tasks: Sequence[Task], grade: Grade) -> None:
        self.store, self.config, self.tasks, self.grade = store, config, tasks, grade
        self.feed = Feed(store, config, tasks)
        self.steps: list[int] = []
        self.played: list[str] = []
        self.short = 0
        self.ended = False

    async def until_trained(self, *, before_tick: Callable[[], Awaitable[None]] | None = None) -> None:
        """The whole run; a restart of the feed at any tick is ``before_tick``'s to make."""
        await self.publish(0)
        for _ in range(500):
            if before_tick is not None:
                await before_tick()
            self.ended = await self.feed.tick() or self.ended
            progress = await self.sample()
            trained = await self.train()
            if trained is None:
                return
            if not progress and not trained and self.ended:
                raise AssertionError("sampler and trainer wait for each other")
        raise AssertionError("the run does not end")

    async def sample(self) -> bool:
        admission = Admission(groups_per_step=self.config.groups_per_step, max_staleness=self.config.max_staleness)
        claim = await self.store.claim("w", splits=(Split.TRAIN,), admission=admission)
        if claim is not None:
            await finish(self.store, claim, self.grade(claim.task.task_id))
            self.played.append(claim.task.task_id)
        return claim is not None

    async def train(self) -> bool | None:
        """Whether a step was taken; None at the end of the stream."""
        rule = TakeRule(
            step=len(self.steps) + 1,
            version=len(self.steps),
            num_groups=self.config.groups_per_step,
            in_order=self.config.pacing.sync_sampling,
            drop_staleness=self.config.pacing.drop_staleness,
            max_refills=self.config.max_refills,
        )
        taken = await self.store.take(rule)
        if taken is None:
            return False
        if not taken.rows:
            return None
        self.steps.append(taken.num_groups)
        self.short += taken.short + taken.left_out
        await self.store.ack(rule.step)
        await self.publish(rule.step)
        return True

    async def publish(self, step: int) -> None:
        await self.store.publish_version(WeightVersion(version=step, step=step, parent=step - 1 if step else None))


async def finish(store: Store, claim: Claim, mean: float) -> None:
    """Two episodes; of scores that differ both are trained."""
    scores = (mean, mean) if mean in (0.0, 1.0) else (0.0, 2 * mean)
    rows = []
    for slot, score in enumerate(scores):
        record = Record(
            task=claim.task.id,
            slot=slot,
            attempt=claim.next_attempt.get(slot, 0),
            status=RecordStatus.SCORED,
            outcome=Outcome.ANSWERED,
            scores=(Score(value=score),),
        )
        await store.finish_record(claim, record)
        rows.append(row_of(claim, record))
    if scores[0] == scores[1]:
        verdict = GroupVerdict(
            slots=dict.fromkeys((0, 1), "no_signal"), status=TaskStatus.ABANDONED, reason="no_signal"
        )
        await store.finalize_group(claim, verdict, [])
    else:
        await store.finalize_group(claim, GroupVerdict(slots={0: -1.0, 1: 1.0}), rows)


def row_of(claim: Claim, record: Record) -> DBRecordData:
    return DBRecordData(
        record=record.id,
        task=claim.task.id,
        seq=claim.task.seq,
        slot=record.slot,
        token_ids=(7, 8),
        mask=(0, 1),
        behavior_logprobs=(float("nan"), -0.5),
        versions=(-1, 0),
        turns=(TurnSpan(start=0, end=2, parent=-1, advantage=1.0),),
        start_version=0,
        end_version=0,
        reward=1.0,
    )


def run(folder: Path, *flags: str, tasks: Sequence[Task], grade: Grade, **options: Any) -> Play:
    config = configured(folder, *flags, "--drop_staleness=1000")

    async def scenario(store: Store) -> Play:
        play = Play(store, config, tasks, grade)
        await play.until_trained(**options)
        return play

    return with_store(config, scenario)


def half_have_signal(task_id: str) -> float:
    return 0.5 if int(task_id[1:]) % 2 else 1.0


# --- Replacements ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", ["--max_staleness=1", "--max_staleness=3", "--sync_sampling=true"])
def test_dynamic_sampling_fills_every_planned_step_and_without_it_steps_are_lost(tmp_path: Path, pace: str) -> None:
    flags = ("--groups_per_step=2", pace)
    without = run(tmp_path / "without", *flags, tasks=questions(12), grade=half_have_signal)
    assert without.steps == [2, 2, 2]
    assert len(without.played) == 12
    filled = run(tmp_path / "with", *flags, "--dynamic_sampling=true", tasks=questions(12), grade=half_have_signal)
    assert filled.steps == [2] * 6
    assert set(Counter(filled.played).values()) <= {1, 2}, "refills are those of a further epoch"
    assert len(set(filled.played[:12])) == 12


def test_a_stream_that_ends_within_a_step_leaves_a_smaller_last_one(tmp_path: Path) -> None:
    played = run(tmp_path, *DYNAMIC, tasks=questions(7), grade=half_have_signal)
    assert played.steps == [2, 2, 2, 1]
    assert played.short == 0


def test_dynamic_sampling_limit_trains_smaller_steps_and_counts_what_is_missing(tmp_path: Path) -> None:
    def one_in_four(task_id: str) -> float:
        return 0.5 if int(task_id[1:]) % 4 == 0 else 0.0

    def steps(limit: int) -> Play:
        flags = (*DYNAMIC, f"--dynamic_sampling_limit={limit}", "--sync_sampling=true", "--seed=5")
        return run(tmp_path / str(limit), *flags, tasks=questions(16), grade=one_in_four)

    wide, narrow = steps(50), steps(1)
    assert wide.steps == [2] * 8
    assert wide.short == 0
    assert len(narrow.played) < len(wide.played)
    assert narrow.short > 0
    assert set(narrow.steps) <= {1, 2}
    assert len(narrow.played) <= 8 * (2 + 1)


@pytest.mark.parametrize("pace", ["--max_staleness=1", "--max_staleness=4", "--sync_sampling=true"])
@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_lost_the_run_ends_with_no_more_than_its_steps_and_refills(
    tmp_path: Path, pace: str, seed: int
) -> None:
    draw = random.Random(f"{pace}/{seed}")
    chance, limit, groups = draw.random(), draw.randint(1, 5), draw.randint(1, 4)
    num_tasks = draw.randint(1, 14)
    flags = ("--dynamic_sampling=true", f"--dynamic_sampling_limit={limit}", f"--groups_per_step={groups}", pace)
    played = run(
        tmp_path,
        *flags,
        tasks=questions(num_tasks),
        grade=lambda _: 0.5 if draw.random() < chance else draw.choice([0.0, 1.0]),
    )
    planned = -(-num_tasks // groups)
    assert len(played.steps) <= planned
    assert sum(played.steps) <= num_tasks
    assert len(played.played) <= num_tasks + planned * limit
    assert sum(played.steps) + played.short <= planned * groups


def test_tasks_that_are_all_solved_end_the_run(tmp_path: Path) -> None:
    flags = (*DYNAMIC, "--dynamic_sampling_limit=3")
    played = run(tmp_path, *flags, tasks=questions(5), grade=lambda _: 1.0)
    assert played.steps == []
    assert 5 + 3 <= len(played.played) <= 5 + 3 * 3


def test_a_limit_of_zero_is_three_times_the_groups_of_a_step(tmp_path: Path) -> None:
    assert configured(tmp_path, *DYNAMIC).max_refills == 6
    assert configured(tmp_path, *DYNAMIC, "--dynamic_sampling_limit=1").max_refills == 1
    assert configured(tmp_path, "--groups_per_step=2").max_refills is None


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--dynamic_sampling_limit=4"], "--dynamic_sampling_limit: has no effect without --dynamic_sampling true"),
        (
            ["--dynamic_sampling=true", "--drop_zero_advantage=false"],
            "--dynamic_sampling: with --drop_zero_advantage false groups without signal are trained",
        ),
        (
            ["--dynamic_sampling=true", "--max_trained_count=2"],
            "--dynamic_sampling: with --max_trained_count 2 a step is filled with groups that were trained before",
        ),
        (["--dynamic_sampling=true", "--dynamic_sampling_limit=-1"], "--dynamic_sampling_limit: expects 0 or more"),
    ],
)
def test_what_dynamic_sampling_cannot_do_is_refused(tmp_path: Path, flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        configured(tmp_path, *flags)
    assert told in str(refused.value)


# --- Curriculum ------------------------------------------------------------------------------------------------------


def test_task_sampling_difficulty_spends_the_groups_where_there_is_signal(tmp_path: Path) -> None:
    """Of eight tasks six are always solved."""

    def grade(task_id: str) -> float:
        return 0.5 if task_id in ("q2", "q5") else 1.0

    flags = ("--groups_per_step=2", "--num_train_epochs=20", "--num_generations=2")
    by_turns = Counter(run(tmp_path / "u", *flags, tasks=questions(8), grade=grade).played)
    chosen = Counter(run(tmp_path / "d", *flags, "--task_sampling=difficulty", tasks=questions(8), grade=grade).played)
    assert by_turns["q2"] + by_turns["q5"] == 40
    assert by_turns.total() == chosen.total() == 160
    assert chosen["q2"] + chosen["q5"] > 80
    assert set(chosen) == {f"q{number}" for number in range(8)}


def test_task_sampling_weights_gives_each_task_its_share(tmp_path: Path) -> None:
    tasks = [task for number, task in enumerate(questions(4, metadata={"weight": 1})) if number]
    tasks += questions(1, metadata={"weight": 5})
    flags = ("--groups_per_step=2", "--num_train_epochs=4", "--task_sampling=weights")
    assert Counter(run(tmp_path, *flags, tasks=tasks, grade=lambda _: 0.5).played) == {
        "q0": 10,
        "q1": 2,
        "q2": 2,
        "q3": 2,
    }


def test_choices_are_made_late_and_max_steps_says_how_many(tmp_path: Path) -> None:
    flags = ("--groups_per_step=2", "--task_sampling=difficulty", "--max_steps=3")

    async def scenario(store: Store) -> None:
        play = Play(store, configured(tmp_path, *flags), questions(40), lambda _: 0.5)
        assert not await play.feed.tick()
        assert await store.count("task") == 2
        assert await store.get_state(PLANNED_GROUPS) == 6
        await play.until_trained()
        assert play.steps == [2, 2, 2]
        assert await store.count("task") == 6

    with_store(configured(tmp_path, *flags), scenario)


@pytest.mark.parametrize("more", [(), ("--dynamic_sampling=true",)])
def test_synchronous_runs_choose_the_same_by_seed_though_the_feed_is_restarted(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    flags = ("--groups_per_step=3", "--num_train_epochs=5", "--task_sampling=difficulty", "--sync_sampling=true", *more)

    def played(name: str, *, restarts: bool = False, seed: int = 1) -> list[str]:
        config = configured(tmp_path / name, *flags, f"--seed={seed}")
        draw = random.Random(3)

        async def scenario(store: Store) -> list[str]:
            play = Play(store, config, questions(10), lambda task_id: (int(task_id[1:]) % 5) / 4)

            async def restart() -> None:
                if restarts and draw.random() < 0.4:
                    play.feed = Feed(store, config, questions(10))

            await play.until_trained(before_tick=restart)
            return play.played

        return with_store(config, scenario)

    assert played("a") == played("b") == played("c", restarts=True)
    assert played("a2", seed=2) != played("a1")


@pytest.mark.parametrize("policy", ["difficulty", "uniform"])
def test_two_feeds_push_each_group_once(tmp_path: Path, policy: str) -> None:
    config = configured(tmp_path, *DYNAMIC, f"--task_sampling={policy}")

    async def scenario(store: Store) -> None:
        play = Play(store, config, questions(9), half_have_signal)
        other = Feed(store, config, questions(9))

        async def tick_both() -> None:
            await asyncio.gather(other.tick(), play.feed.tick())

        await play.until_trained(before_tick=tick_both)
        assert sum(play.steps) == 9
        assert len(play.played) == len(set(await ids(store)))

    async def ids(store: Store) -> list[str]:
        return [task.id for task in await store.find("task")]

    with_store(config, scenario)


def test_a_choice_that_was_kept_before_a_crash_is_pushed_after_it(tmp_path: Path) -> None:
    config = configured(tmp_path, "--groups_per_step=2", "--task_sampling=difficulty", "--num_train_epochs=2")

    async def scenario(store: Store) -> None:
        await store.keep_state("feed/0", "q3")
        await store.keep_state("feed/1", "q3")
        await Feed(store, config, questions(4)).tick()
        assert [task.id for task in await store.find("task")] == ["r/train/0/q3", "r/train/1/q3"]
        await store.keep_state("feed/2", "gone")
        with pytest.raises(ConfigError, match="has chosen task gone to be sampled next, and the file no longer has it"):
            await Feed(store, config, questions(4)).tick()

    with_store(config, scenario)


def test_where_nothing_depends_on_scores_all_is_pushed_at_once_in_the_order_of_the_epochs(tmp_path: Path) -> None:
    config = configured(tmp_path, "--num_train_epochs=3", "--max_steps=1")

    async def scenario(store: Store) -> None:
        assert await Feed(store, config, questions(5)).tick()
        pushed = [task.id for task in await store.find("task")]
        assert pushed == [task.id for task in training_tasks(config, questions(5))]
        assert await store.stream_ended(Split.TRAIN)

    with_store(config, scenario)


def test_work_beside_the_feed_ends_with_it_when_it_breaks_and_without_it_when_done(tmp_path: Path) -> None:
    config = configured(tmp_path, *DYNAMIC)

    async def scenario(store: Store) -> None:
        feed = Feed(store, config, questions(3))
        assert await feed.beside(asyncio.sleep(0.05, "done")) == "done"
        await store.close()
        with pytest.raises(Exception, match="not open"):
            await feed.beside(asyncio.sleep(60))
        await store.open()

    with_store(config, scenario)


def test_a_budget_that_ends_sampling_ends_the_stream_and_what_it_set_aside_is_no_loss(tmp_path: Path) -> None:
    config = configured(tmp_path, *DYNAMIC, "--task_sampling=difficulty")

    async def scenario(store: Store) -> None:
        play = Play(store, config, questions(20), lambda _: 0.5)
        await play.publish(0)
        await play.feed.tick()
        await play.sample()
        await store.set_aside(Split.TRAIN, SET_ASIDE)
        assert (await store.queue(Split.TRAIN)).lost == 0
        await store.set_state(BUDGET_REACHED, {"used_up": "calls", "action": "warn", "at": time.time() + 1})
        assert not await play.feed.tick()
        num_pushed = await store.count("task")
        await store.set_state(BUDGET_REACHED, {"used_up": "calls", "action": "stop", "at": time.time() + 1})
        assert await play.feed.tick()
        assert await store.stream_ended(Split.TRAIN)
        assert await store.count("task") == num_pushed
        await store.set_state(BUDGET_REACHED, {"used_up": "calls", "action": "stop", "at": time.time() - 60})
        assert not await Feed(store, config, questions(20)).tick(), "an earlier start had less to spend"

    with_store(config, scenario)


def test_a_choice_that_another_feed_kept_first_is_the_one_that_is_pushed(tmp_path: Path) -> None:
    config = configured(tmp_path, "--groups_per_step=2", "--task_sampling=difficulty")

    async def scenario(store: Store) -> None:
        keep = store.keep_state

        async def second(key: str, value: Any) -> Any:
            await keep(key, "q3")
            return await keep(key, value)

        store.keep_state = second  # type: ignore[method-assign]
        await Feed(store, config, questions(9)).tick()
        assert [task.task_id for task in await store.find("task")] == ["q3", "q3"]

    with_store(config, scenario)


def test_synchronous_runs_choose_when_all_groups_are_finished(tmp_path: Path) -> None:
    config = configured(tmp_path, "--groups_per_step=3", "--task_sampling=difficulty", "--sync_sampling=true")

    async def scenario(store: Store) -> None:
        play = Play(store, config, questions(9), lambda _: 0.5)
        await play.publish(0)
        await play.feed.tick()
        for num_finished in range(4):
            await play.feed.tick()
            assert await store.count("task") == (3 if num_finished < 3 else 6)
            await play.sample()

    with_store(config, scenario)
