"""Task files into the store, and rounds of held-out evaluation."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, play, questions, with_store

from agentrl.cli.feed import evaluate, evaluation_tasks, planned_steps, read_tasks, training_tasks
from agentrl.cli.sample import push_own_tasks
from agentrl.errors import ConfigError, LeaseLost
from agentrl.store import Store
from agentrl.types import Claim, GroupVerdict, Outcome, Record, RecordStatus, Score, Split, Worker


def order(folder: Path, *flags: str, epoch: int = 0) -> list[str]:
    tasks = training_tasks(configured(folder, *flags), questions(20))
    return [task.task_id for task in tasks if task.epoch == epoch]


def test_tasks_are_shuffled_by_seed_and_epoch_and_by_nothing_else(tmp_path: Path) -> None:
    flags = ("--seed=1", "--num_train_epochs=2")
    assert order(tmp_path, *flags) == order(tmp_path, *flags)
    assert order(tmp_path, *flags) != [task.task_id for task in questions(20)]
    assert order(tmp_path, *flags) != order(tmp_path, *flags, epoch=1)
    assert order(tmp_path, *flags) != order(tmp_path, "--seed=2")
    assert set(order(tmp_path, *flags, epoch=1)) == {task.task_id for task in questions(20)}


def test_pushed_tasks_say_run_split_epoch_and_size_of_the_group(tmp_path: Path) -> None:
    config = configured(tmp_path, "--num_generations=5", "--eval_generations=2")
    (train,) = training_tasks(config, questions())
    (held_out,) = evaluation_tasks(config, questions(), step=7)
    assert (train.id, train.num_slots) == ("r/train/0/q0", 5)
    assert (held_out.id, held_out.num_slots) == ("r/eval/7/q0", 2)


def test_steps_are_those_that_the_tasks_give_rounded_up_unless_max_steps_says_so(tmp_path: Path) -> None:
    flags = ("--groups_per_step=4", "--num_train_epochs=3")
    assert planned_steps(configured(tmp_path, *flags), 3) == 3
    assert planned_steps(configured(tmp_path, *flags, "--max_steps=40"), 3) == 40


def test_a_missing_file_is_named_by_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--eval_file: no such file: nowhere\.jsonl"):
        read_tasks("nowhere.jsonl", "--eval_file")


# --- Evaluation --------------------------------------------------------------------------------------------------


async def claimed(store: Store, worker: str) -> Claim:
    await store.heartbeat(Worker(id=worker, kind="sampler", host="h", pid=1))
    claim = await store.claim(worker, splits=(Split.EVAL,))
    assert claim is not None
    return claim


def record(claim: Claim, slot: int, value: float | None) -> Record:
    return Record(
        task=claim.task.id,
        slot=slot,
        attempt=claim.next_attempt.get(slot, 0),
        status=RecordStatus.UNSCORED if value is None else RecordStatus.SCORED,
        reason="no verdict" if value is None else "",
        outcome=Outcome.ANSWERED,
        scores=(Score(value=value),),
    )


async def finish(store: Store, claim: Claim, *values: float | None) -> None:
    for slot, value in enumerate(values):
        await store.finish_record(claim, record(claim, slot, value))
    slots = {slot: "evaluation" for slot in range(len(values))}
    await store.finalize_group(claim, GroupVerdict(slots=slots), [])


def test_a_round_waits_until_it_is_played_and_averages_what_could_be_scored(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=2")

    async def scenario(store: Store) -> None:
        round_ = asyncio.create_task(evaluate(store, evaluation_tasks(config, questions(2), 0), 0))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 1.0, 0.0)
        await asyncio.sleep(0.3)
        assert not round_.done()
        await finish(store, await claimed(store, "a"), 1.0, None)
        done = await asyncio.wait_for(round_, 5)
        assert done.success == pytest.approx(2 / 3)
        assert (len(done.records), done.num_unscored) == (4, 1)

    with_store(config, scenario)


def test_a_round_that_was_played_is_not_played_again(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        tasks = evaluation_tasks(config, questions(), 0)
        await store.add_tasks(tasks)
        await finish(store, await claimed(store, "a"), 1.0)
        again = await asyncio.wait_for(evaluate(store, tasks, 0), 5)
        assert again.success == 1.0
        assert await store.claim("a", splits=(Split.EVAL,)) is None
        later = asyncio.create_task(evaluate(store, evaluation_tasks(config, questions(), 9), 9))
        await asyncio.sleep(0.05)
        await finish(store, await claimed(store, "a"), 0.0)
        assert (await asyncio.wait_for(later, 5)).success == 0.0

    with_store(config, scenario)


def test_late_records_of_a_lost_lease_do_not_count(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        tasks = evaluation_tasks(config, questions(), 0)
        await store.add_tasks(tasks)
        late = await claimed(store, "late")
        await store.release(late)
        new = await claimed(store, "new")
        await finish(store, replace(new, next_attempt={0: 1}), 0.0)
        with pytest.raises(LeaseLost):
            await store.finish_record(late, record(late, 0, 1.0))
        assert {str(each.status) for each in await store.find("record")} == {"expired", "scored"}
        assert (await evaluate(store, tasks, 0)).success == 0.0

    with_store(config, scenario)


def test_nothing_scored_is_a_success_of_zero_that_says_how_many_are_missing(tmp_path: Path) -> None:
    config = configured(tmp_path, "--eval_generations=1")

    async def scenario(store: Store) -> None:
        tasks = evaluation_tasks(config, questions(), 0)
        await store.add_tasks(tasks)
        await finish(store, await claimed(store, "a"), None)
        done = await evaluate(store, tasks, 0)
        assert (done.success, done.num_unscored) == (0.0, 1)

    with_store(config, scenario)


def test_held_out_tasks_are_played_before_training_tasks(tmp_path: Path) -> None:
    played = play(tmp_path, "--target_concurrency=1", train=questions(2), held_out=questions(2))
    splits = [session.split("/")[1] for session, _ in played.engine.prompts]
    assert splits == sorted(splits)


# --- A sampler alone ---------------------------------------------------------------------------------------------


def write(path: Path, **row: Any) -> str:
    path.write_text(json.dumps({"id": path.stem, "query": "?", "answer": "3", "scorer": "exact"} | row) + "\n")
    return str(path)


def test_a_sampler_alone_pushes_the_files_it_is_given_and_ends_the_streams(tmp_path: Path) -> None:
    train, held_out = write(tmp_path / "train.jsonl"), write(tmp_path / "heldout.jsonl")

    def streams(folder: str, *flags: str) -> tuple[list[str], bool, bool]:
        config = configured(tmp_path / folder, *flags)

        async def scenario(store: Store) -> tuple[list[str], bool, bool]:
            await push_own_tasks(config, store)
            ended = [await store.stream_ended(split) for split in (Split.TRAIN, Split.EVAL)]
            return sorted(task.id for task in await store.find("task")), ended[0], ended[1]

        return with_store(config, scenario)

    assert streams("none") == ([], False, False)
    assert streams("train", f"--train_file={train}") == (["r/train/0/train"], True, True)
    both = (f"--train_file={train}", f"--eval_file={held_out}")
    assert streams("both", *both) == (["r/eval/0/heldout", "r/train/0/train"], True, True)


def test_a_sampler_alone_refuses_an_unknown_scorer_before_it_pushes(tmp_path: Path) -> None:
    config = configured(tmp_path, f"--train_file={write(tmp_path / 't.jsonl', scorer='exakt')}")

    async def scenario(store: Store) -> None:
        with pytest.raises(ConfigError, match="exakt"):
            await push_own_tasks(config, store)
        assert not await store.find("task")

    with_store(config, scenario)
