"""Each option of optimizer, algorithm, checkpoints and model, from its flag to what it changes in the trainer."""

import json
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_help import configured
from trainer_help import KeepingPublisher, random_rows, write_model

from agentrl.batch.plan import StepPlan, plan_step
from agentrl.cli.train import count_tasks, gap_limits, main, source_options, train_config, train_run
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, WaitTimeout, WeightsError
from agentrl.models.load import load_policy
from agentrl.store import BlockingStore, open_store
from agentrl.store.sqlite import SqliteStore
from agentrl.telemetry import Telemetry
from agentrl.trainer.batches import ScriptedBatchSource
from agentrl.trainer.loop import train
from agentrl.trainer.progress import Progress
from agentrl.trainer.source import StoreBatchSource
from agentrl.types import DBRecordData, WeightVersion, Worker

NUM_STEPS = 3
SENSITIVE = ("--learning_rate=1e-3", "--adam_epsilon=0.01", "--max_grad_norm=1e9", "--max_tokens=1000")
"""With so large an epsilon AdamW does not undo a change of scale."""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def configure(model_folder: Path, *flags: str, folder: Path | None = None) -> RunConfig:
    return configured(folder or model_folder.parent, *SENSITIVE, f"--model_name_or_path={model_folder}", *flags)


def aged_rows(seed: int) -> list[DBRecordData]:
    """Tokens of versions 0 to 4."""
    rng = random.Random(seed)
    rows = random_rows(seed)
    return [replace(row, versions=[v if v < 0 else rng.randrange(5) for v in row.versions]) for row in rows]


def planned(config: RunConfig, rows: Sequence[DBRecordData]) -> StepPlan:
    """As the trainer's source plans them."""
    options = source_options(config)
    return plan_step(
        rows,
        options=options.algo,
        optim=options.optim,
        step_of_version=lambda version: version,
        step=4,
        max_tokens_per_microbatch=options.max_tokens_per_microbatch,
    )


def trained(config: RunConfig, folder: Path) -> torch.Tensor:
    """All weights, one behind the other, after ``NUM_STEPS`` steps."""
    batches = [planned(config, aged_rows(step)).microbatches for step in range(NUM_STEPS)]
    publisher = KeepingPublisher()
    options = replace(train_config(config, 0), folder=folder, gap_limits=None)
    options = replace(options, total_steps=options.total_steps or NUM_STEPS)
    train(options, ScriptedBatchSource(batches), publisher, Telemetry([]))
    newest = publisher.weights[max(publisher.weights)]
    return torch.cat([tensor.flatten() for _, tensor in sorted(newest.items())])


MINIRL = ["--loss=MINIRL"]
AGEING = ["--loss=MINIRL", "--importance_weight_cap_ratio=2"]
CHANGES = {
    "learning_rate": ([], "2e-3"),
    "weight_decay": ([], "0.1"),
    "adam_beta1": ([], "0.5"),
    "adam_beta2": ([], "0.5"),
    "adam_epsilon": ([], "0.1"),
    "max_grad_norm": ([], "0.001"),
    "lr_scheduler_type": ([], "linear"),
    "warmup_steps": ([], "2"),
    "warmup_ratio": ([], "0.6"),
    "max_steps": ([], "2"),
    "loss_calculater": ([], "GSPO"),
    "epsilon": ([], "0.5"),
    "epsilon_higher": ([], "0.9"),
    "token_level_loss": ([], "false"),
    "skip_length_normalization": (["--token_level_loss=false"], "true"),
    "out_of_bound_mask": (MINIRL, "false"),
    "strict_in_bound": (MINIRL, "true"),
    "importance_weight_cap_ratio": (MINIRL, "1.5"),
    "out_of_date_decay": (AGEING, "0.2"),
    "is_cap": (MINIRL, "1.1"),
    "cispo_cap_low": (["--loss=CISPO"], "0.8"),
    "cispo_cap_high": (["--loss=CISPO"], "1.2"),
    "loss_constant": (["--loss=DR_GRPO"], "7"),
    "beta1": ([], "0.5"),
    "beta2": ([], "0.5"),
    "max_tokens": ([], "9"),
}


@pytest.fixture(scope="module")
def baselines(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], torch.Tensor]:
    sets = {tuple(["--max_steps=3", *base]) for base, _ in CHANGES.values()}
    return {flags: trained(configure(model_folder, *flags), tmp_path_factory.mktemp("run")) for flags in sets}


@pytest.mark.parametrize("name", CHANGES)
def test_it_changes_the_weights_after_three_steps(
    name: str, model_folder: Path, tmp_path: Path, baselines: dict[tuple[str, ...], torch.Tensor]
) -> None:
    base, value = CHANGES[name]
    flags = ["--max_steps=3", *base]
    changed = trained(configure(model_folder, *flags, f"--{name}={value}"), tmp_path)
    assert not torch.equal(changed, baselines[tuple(flags)])


def test_the_same_flags_give_the_same_weights(
    model_folder: Path, tmp_path: Path, baselines: dict[tuple[str, ...], torch.Tensor]
) -> None:
    assert torch.equal(trained(configure(model_folder, "--max_steps=3"), tmp_path), baselines[("--max_steps=3",)])


# --- Batches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        ["--max_tokens_per_microbatch=20"],
        ["--per_device_train_batch_size=1", "--max_tokens=20", "--groups_per_step=1"],
    ],
)
def test_a_smaller_microbatch_means_more_of_them(flags: list[str], model_folder: Path) -> None:
    rows = aged_rows(0)
    whole, split = planned(configure(model_folder), rows), planned(configure(model_folder, *flags), rows)
    assert len(whole.microbatches) == 1
    assert len(split.microbatches) > 1


class Asked(BlockingStore):
    """Keeps the rules it was asked to take by."""

    rules: list[Any]

    def call(self, function: Any, *args: Any, **more: Any) -> Any:
        if getattr(function, "__name__", "") == "take":
            self.rules = [*getattr(self, "rules", []), args[0]]
        return super().call(function, *args, **more)


def rule_of(config: RunConfig) -> Any:
    """What the trainer's source asks of the store before it has waited long enough."""
    config.folder.mkdir(parents=True, exist_ok=True)
    with Asked(open_store(config.store_url, run="r")) as store:
        store.call(store.store.publish_version, WeightVersion(version=0, step=0, parent=None))
        source = StoreBatchSource(store, source_options(config))
        try:
            with pytest.raises(WaitTimeout, match=r"waited 0\.05 s"):
                source.next(Progress())
        finally:
            source.close()
        return store.rules[0]


def test_staleness_order_and_groups_are_asked_of_the_store(tmp_path: Path) -> None:
    usual = rule_of(configured(tmp_path, "--wait_timeout=0.05"))
    assert (usual.drop_staleness, usual.in_order, usual.num_groups) == (8, False, 4)
    flags = ("--drop_staleness=3", "--sync_sampling", "--gradient_accumulation_steps=2")
    other = rule_of(configured(tmp_path, "--wait_timeout=0.05", *flags))
    assert (other.drop_staleness, other.in_order, other.num_groups) == (3, True, 8)


def test_reuse_is_asked_of_the_store(tmp_path: Path) -> None:
    flags = ("--max_trained_count=3", "--retrained_interval=2")
    rules = [rule_of(configured(tmp_path, "--wait_timeout=0.05", *given)) for given in ((), flags)]
    assert [(rule.max_trained_count, rule.retrained_interval) for rule in rules] == [(1, 1), (3, 2)]


def test_refills_are_asked_of_the_store(tmp_path: Path) -> None:
    flags = ("--dynamic_sampling=true", "--dynamic_sampling_limit=5")
    rules = [rule_of(configured(tmp_path, "--wait_timeout=0.05", *given)) for given in ((), flags[:1], flags)]
    assert [rule.max_refills for rule in rules] == [None, 3 * rules[0].num_groups, 5]


def test_wait_timeout_ends_the_wait_for_a_batch(tmp_path: Path) -> None:
    begun = time.monotonic()
    rule_of(configured(tmp_path, "--wait_timeout=0.05"))
    assert time.monotonic() - begun < 5


def test_sampler_timeout_ends_the_wait_for_samplers_that_died(tmp_path: Path) -> None:
    config = configured(tmp_path, "--wait_timeout=60", "--sampler_timeout=0.6")
    config.folder.mkdir(parents=True, exist_ok=True)
    with BlockingStore(open_store(config.store_url, run="r")) as store:
        store.call(store.store.publish_version, WeightVersion(version=0, step=0, parent=None))
        sampler = Worker(id="sampler/h/1", kind="sampler", host="h", pid=1)
        stop_beating = store.every(0.1, lambda: store.store.heartbeat(sampler))
        source = StoreBatchSource(store, source_options(config))
        threading.Timer(1.0, stop_beating).start()
        begun = time.monotonic()
        try:
            with pytest.raises(WaitTimeout, match=r"step 1 would wait for ever: sampler/h/1 died or left"):
                source.next(Progress())
        finally:
            source.close()
        assert 1.4 < time.monotonic() - begun < 10


def test_a_trainer_waits_for_the_first_sampler_whatever_died_before(tmp_path: Path) -> None:
    config = configured(tmp_path, "--wait_timeout=0.5", "--sampler_timeout=0.1")
    config.folder.mkdir(parents=True, exist_ok=True)
    path = config.folder / "run.db"
    with BlockingStore(SqliteStore(path, run="r", clock=lambda: time.time() - 3600)) as earlier:
        earlier.call(earlier.store.heartbeat, Worker(id="sampler/h/1", kind="sampler", host="h", pid=1))
    with BlockingStore(open_store(config.store_url, run="r")) as store:
        store.call(store.store.publish_version, WeightVersion(version=0, step=0, parent=None))
        source = StoreBatchSource(store, source_options(config))
        try:
            with pytest.raises(WaitTimeout, match=r"waited 0\.5 s.*sampler/h/1 is dead, beat last 36\d\d s ago"):
                source.next(Progress())
        finally:
            source.close()


# --- Checkpoints, model, engines ---------------------------------------------------------------------------------


def checkpoints_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def test_save_steps_and_save_total_limit_decide_what_is_kept(model_folder: Path, tmp_path: Path) -> None:
    for flags, kept in (
        (["--save_steps=2"], ["checkpoint-2", "checkpoint-3"]),
        (["--save_steps=1"], ["checkpoint-1", "checkpoint-2", "checkpoint-3"]),
        (["--save_steps=1", "--save_total_limit=1"], ["checkpoint-3"]),
    ):
        folder = tmp_path / "".join(flags)
        trained(configure(model_folder, *flags), folder)
        assert checkpoints_of(folder) == kept


def test_resume_from_checkpoint_goes_on_where_it_stood(model_folder: Path, tmp_path: Path) -> None:
    trained(configure(model_folder, "--max_steps=2"), tmp_path)
    options = train_config(configure(model_folder, "--resume_from_checkpoint=auto", "--max_steps=3"), 0)
    source = ScriptedBatchSource([planned(configure(model_folder), aged_rows(step)).microbatches for step in range(3)])
    train(replace(options, folder=tmp_path, gap_limits=None), source, KeepingPublisher(), Telemetry([]))
    assert source.acknowledged == [3]


def recomputes(model_folder: Path, *flags: str) -> bool:
    policy = load_policy(model_folder, train_config(configure(model_folder, *flags), 0).model)
    return any(getattr(module, "gradient_checkpointing", False) for module in policy.model.modules())


def test_gradient_checkpointing_recomputes_activations(model_folder: Path) -> None:
    assert recomputes(model_folder, "--gradient_checkpointing")
    assert not recomputes(model_folder)


OWN_MODEL = """
from transformers import LlamaConfig, LlamaForCausalLM

class OwnConfig(LlamaConfig):
    model_type = "own_of_a_test"

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def test_trust_remote_code_runs_the_code_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = write_model(tmp_path / "own", "llama")
    (folder / "own.py").write_text(OWN_MODEL)
    own = {
        "model_type": "own_of_a_test",
        "architectures": ["OwnForCausalLM"],
        "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnForCausalLM"},
    }
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | own))
    with pytest.raises(ConfigError, match="trust_remote_code"):
        load_policy(folder, train_config(configure(folder), 0).model)
    policy = load_policy(folder, train_config(configure(folder, "--trust_remote_code"), 0).model)
    assert type(policy.model).__name__ == "OwnForCausalLM"


def test_publish_timeout_ends_the_wait_for_an_engine_that_engine_url_names(model_folder: Path, tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    flags = [f"--engine_url={url}", "--publish_timeout=0.5", "--enable_sampling=false"]
    config = configure(model_folder, *flags, folder=tmp_path)
    config.folder.mkdir()
    begun = time.monotonic()
    with pytest.raises(WeightsError, match=url):
        train_run(config, threading.Event())
    assert time.monotonic() - begun < 20


def test_enable_sampling_starts_the_node_around_training(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def node(config: RunConfig, stop: threading.Event) -> Iterator[None]:
        seen.append("node started")
        yield
        seen.append("node done")

    monkeypatch.setattr("agentrl.cli.train.sampling_node", node)
    monkeypatch.setattr("agentrl.trainer.loop.train", lambda *_: seen.append("trained"))
    monkeypatch.setattr("signal.signal", lambda *_: None)
    flags = ["--run_name=r", f"--output_dir={tmp_path}", f"--model_name_or_path={model_folder}"]
    main(flags)
    assert seen == ["node started", "trained", "node done"]
    seen.clear()
    main([*flags, "--enable_sampling=false"])
    assert seen == ["trained"]


def test_engine_and_trainer_must_agree_only_where_they_compute_alike(model_folder: Path) -> None:
    assert gap_limits(configure(model_folder)) is not None
    assert gap_limits(configure(model_folder, "--engine=scripted", "--engine_script=a:b")) is None
    assert gap_limits(configure(model_folder, "--engine_url=http://h:1")) is None
    assert gap_limits(configure(model_folder, "--torch_dtype=bfloat16")) is None


OWN_SCORER = """
from agentrl.scoring import MCPScorerFactory

def half(answer, truth):
    return 0.5

MCPScorerFactory.register_scorer("trainer_test", half)
"""


def test_scorer_module_lets_the_trainer_read_tasks_with_its_scorers(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scorers_of_a_trainer_test.py").write_text(OWN_SCORER)
    monkeypatch.syspath_prepend(str(tmp_path))
    row = {"id": "a", "query": "?", "answer": "3", "scorer": "trainer_test"}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    flags = (f"--train_file={tmp_path / 'own.jsonl'}", "--scorer_module=scorers_of_a_trainer_test")
    assert count_tasks(configure(model_folder, *flags)) == 1
    assert count_tasks(configure(model_folder)) == 0


def test_the_steps_of_training_are_those_of_the_tasks_or_max_steps(model_folder: Path) -> None:
    flags = ("--groups_per_step=4", "--num_train_epochs=2")
    assert train_config(configure(model_folder, *flags), 9).total_steps == 5
    assert train_config(configure(model_folder, *flags, "--max_steps=2"), 9).total_steps == 2
    assert train_config(configure(model_folder, *flags), 0).total_steps == 0
