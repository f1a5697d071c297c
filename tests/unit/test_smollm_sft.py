"""``agentrl sft``: its options, its batches, and that a resumed run ends where an uninterrupted one does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from agentrl.cli import sft as command
from agentrl.cli.model_folder import model_folder
from agentrl.config import OptimOptions, SftConfig
from agentrl.errors import ConfigError
from agentrl.models.tiny import CALCULATOR, TINY_MODEL_DIR, questions
from agentrl.models.tiny_warm_start import good_dialogue
from agentrl.trainer.progress import Progress
from agentrl.trainer.sft import DialogueBatchSource, supervised_row
from agentrl.types import DBRecordData, MaskCause


class Turn:
    """A reply after a prompt, for rows without a tokenizer."""

    def __init__(self, prompt_ids: list[int], reply_ids: list[int], parent: int) -> None:
        self.prompt_ids, self.reply_ids, self.parent = prompt_ids, reply_ids, parent


def row(number: int) -> DBRecordData:
    return supervised_row(str(number), [Turn([1, 2, number], [3, 4], -1), Turn([5], [6], 0)])


def source(**changes: Any) -> DialogueBatchSource:
    settings: dict[str, Any] = {
        "rows": [row(number) for number in range(10, 15)],
        "optim": OptimOptions(max_tokens=100),
        "rows_per_step": 2,
        "max_tokens_per_microbatch": 100,
        "total_steps": 6,
        "seed": 0,
    }
    return DialogueBatchSource(**settings | changes)


def test_replies_are_the_targets_and_every_token_weighs_the_same() -> None:
    batch = source().next(Progress())
    assert batch is not None
    targets = sorted(token for micro in batch.microbatches for token in micro.targets_T.tolist())
    assert targets == [3, 3, 4, 4, 6, 6]
    weights = [weight for micro in batch.microbatches for weight in micro.weights_T.tolist()]
    assert weights == pytest.approx([1 / 6] * 6)


def test_an_epoch_holds_every_dialogue_once_in_an_order_of_its_own() -> None:
    batches = source()
    epochs = [[r.record for step in range(3 * e, 3 * e + 3) for r in batches.rows_of(step)] for e in (0, 1)]
    assert [sorted(epoch) for epoch in epochs] == [sorted(str(number) for number in range(10, 15))] * 2
    assert epochs[0] != epochs[1]
    assert source(seed=1).rows_of(0) != batches.rows_of(0) or source(seed=2).rows_of(0) != batches.rows_of(0)


def test_the_source_ends_after_its_steps() -> None:
    assert source(total_steps=1).next(Progress(step=1)) is None


def test_supervise_last_masks_the_replies_before() -> None:
    turns = [Turn([1], [3, 4], -1), Turn([5], [6], 0)]
    masks = {how: supervised_row("d", turns, supervise=how).mask for how in ("all", "last")}
    context, learned = MaskCause.CONTEXT, MaskCause.SAMPLED
    assert masks["all"] == (context, learned, learned, context, learned)
    assert masks["last"] == (context, context, context, context, learned)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--groups_per_step=2"], "--groups_per_step: there are no groups here"),
        (["--db_connection_string=sqlite:///x"], "--db_connection_string: supervised training has no store"),
        (["--eval_strategy=no"], "--eval_strategy: supervised training evaluates nothing"),
        (["--eval_steps=3"], "--eval_steps: supervised training evaluates nothing"),
        (["--enable_sampling=false"], "--enable_sampling: supervised training samples nothing"),
        (["--model_name=x"], "--model_name: nothing is served"),
        (["--learning_rate=0"], "--learning_rate: expects a number above 0"),
        (["--max_steps=0"], "--max_steps: expects -1"),
        (["--supervise=some"], "--supervise"),
        (["--superwise=all"], "did you mean --supervise"),
    ],
)
def test_what_cannot_work_is_refused_by_name(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SftConfig.parse(flags)
    assert message in str(caught.value)


def test_the_defaults_are_those_of_the_reference() -> None:
    config = SftConfig.parse([])
    assert config.dialogues_per_step == 4
    options = config.flat()
    expected = {
        "learning_rate": 2e-5,
        "num_train_epochs": 3,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "max_tokens": 21_000,
        "lr_scheduler_type": "cosine",
        "warmup_ratio": 0.03,
        "supervise": "all",
    }
    assert {name: options[name] for name in expected} == expected


def dialogues_file(folder: Path, count: int = 8) -> Path:
    path = folder / "dialogues.jsonl"
    rows = [{"messages": good_dialogue(question), "tools": [CALCULATOR]} for question in questions("warmup")[:count]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def sft(folder: Path, name: str, *flags: str) -> None:
    arguments = [
        f"--run_name={name}",
        f"--output_dir={folder}",
        f"--train_file={folder / 'dialogues.jsonl'}",
        f"--model_name_or_path={TINY_MODEL_DIR}",
        "--learning_rate=1e-3",
        "--save_steps=2",
        *flags,
    ]
    assert command.main(arguments) == 0


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialogues_file(tmp_path)
    sft(tmp_path, "whole", "--num_train_epochs=2")
    assert len(losses(tmp_path / "whole")) == 4

    from agentrl.trainer import sft as room

    fresh = room.DialogueBatchSource.next
    monkeypatch.setattr(room.DialogueBatchSource, "next", lambda self, at: None if at.step >= 2 else fresh(self, at))
    sft(tmp_path, "halves", "--num_train_epochs=2")
    monkeypatch.undo()
    sft(tmp_path, "halves", "--num_train_epochs=2", "--resume_from_checkpoint=auto")
    whole, halves = (load_file(tmp_path / name / "checkpoint-4" / "model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(whole[name], halves[name]) for name in whole)


def test_over_long_dialogues_are_counted_on_the_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dialogues_file(tmp_path, 2)
    long = {"messages": [{"role": "user", "content": "x" * 500}, {"role": "assistant", "content": "y"}]}
    path.write_text(path.read_text() + json.dumps(long) + "\n")
    sft(tmp_path, "long", "--max_steps=1", "--max_tokens=200")
    assert "2 dialogues" in (printed := capsys.readouterr().out)
    assert "1 longer than 200 tokens dropped" in " ".join(printed.split())


def test_a_used_folder_is_refused_and_a_run_folder_means_its_newest_checkpoint(tmp_path: Path) -> None:
    dialogues_file(tmp_path, 2)
    sft(tmp_path, "one", "--max_steps=2")
    with pytest.raises(ConfigError, match="holds checkpoints already: give another --run_name"):
        sft(tmp_path, "one", "--max_steps=2")
    said: list[str] = []
    assert model_folder(str(tmp_path / "one"), say=said.append) == str(tmp_path / "one" / "checkpoint-2")
    assert "checkpoint-2" in said[0]
    (tmp_path / "one" / "checkpoint-10").mkdir()
    assert model_folder(str(tmp_path / "one"), say=said.append).endswith("checkpoint-2"), "10 is incomplete"
    assert model_folder(str(tmp_path), say=said.append) == str(tmp_path)


def test_a_refused_dialogue_is_named_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentrl.errors import RenderError

    dialogues_file(tmp_path, 1)

    def refuse(*_: object) -> None:
        raise RenderError("no")

    monkeypatch.setattr(command, "dialogue_turns", refuse)
    with pytest.raises(ConfigError, match=r"dialogues.jsonl, line 1: no"):
        sft(tmp_path, "refused")


def test_the_gap_allowed_between_engine_and_trainer_grows_with_the_depth_of_the_model(tmp_path: Path) -> None:
    from agentrl.cli.train import gap_limits
    from agentrl.config import RunConfig

    def limits(*flags: str):
        return gap_limits(RunConfig.parse([f"--model_name_or_path={tmp_path}", *flags], command="train"))

    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 2}))
    shallow = limits()
    (tmp_path / "config.json").write_text(json.dumps({"num_hidden_layers": 30}))
    deep = limits()
    assert shallow is not None
    assert deep is not None
    assert shallow.p999 == 1e-5
    assert 2e-5 < deep.p999 < 5e-5
    assert shallow.maximum == deep.maximum == 1e-4
    assert limits("--torch_dtype=bfloat16") is None
