"""Task files into the store."""

import json
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, questions, with_store

from agentrl.cli.feed import evaluation_tasks, planned_steps, read_tasks, training_tasks
from agentrl.cli.sample import push_own_tasks
from agentrl.errors import ConfigError
from agentrl.store import Store
from agentrl.types import Split


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
    (held_out,) = evaluation_tasks(config, questions(), version=7)
    assert (train.id, train.num_slots) == ("r/train/0/q0", 5)
    assert (held_out.id, held_out.num_slots) == ("r/eval/7/q0", 2)


def test_steps_are_those_that_the_tasks_give_rounded_up_unless_max_steps_says_so(tmp_path: Path) -> None:
    flags = ("--groups_per_step=4", "--num_train_epochs=3")
    assert planned_steps(configured(tmp_path, *flags), 3) == 3
    assert planned_steps(configured(tmp_path, *flags, "--max_steps=40"), 3) == 40
    assert planned_steps(configured(tmp_path, *flags, "--max_trained_count=3"), 3) == 7


def test_a_missing_file_is_named_by_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--eval_file: no such file: nowhere\.jsonl"):
        read_tasks("nowhere.jsonl", "--eval_file")


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
