"""What launchers say: torchrun's variables and accelerate's configuration."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.parallel import Launch, without_launcher
from agentrl.parallel.accelerate import REFUSED, WITHOUT_EFFECT, take_accelerate

SHIPPED = Path(__file__).resolve().parents[2] / "assets/fsdp2_dst.yml"
RENDEZVOUS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **RENDEZVOUS}


def test_without_a_launcher_there_is_one_rank() -> None:
    assert Launch.of({}) == Launch()
    assert Launch.of({"WORLD_SIZE": "1"}).num_machines == 1


def test_torchrun_says_rank_and_machines() -> None:
    launch = Launch.of(TORCHRUN)
    assert (launch.rank, launch.world_size, launch.local_rank, launch.num_machines) == (3, 4, 1, 2)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE: expects a whole number, got 'two'"),
        ({"WORLD_SIZE": "2", "RANK": "2", **RENDEZVOUS}, "RANK: 2 is no rank of WORLD_SIZE 2"),
        ({"WORLD_SIZE": "2"}, "2 ranks need RANK, MASTER_ADDR, MASTER_PORT too: start with torchrun"),
    ],
)
def test_a_launch_that_cannot_be_is_refused(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Launch.of(environ)


def test_several_machines_need_a_database_server() -> None:
    with pytest.raises(ConfigError, match=r"4 ranks on 2 machines.*--db_connection_string mongodb://"):
        Launch.of(TORCHRUN).require_store("sqlite:///run.db")
    Launch.of(TORCHRUN).require_store("mongodb://root@host:27017/")
    Launch.of(TORCHRUN | {"LOCAL_WORLD_SIZE": "4"}).require_store("sqlite:///run.db")


def test_the_batch_is_reckoned_over_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = ["--per_device_train_batch_size=3", "--gradient_accumulation_steps=2", "--num_generations=4"]
    alone = RunConfig.parse(flags, command="train")
    assert (alone.records_per_step, alone.groups_per_step) == (6, 2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    launched = RunConfig.parse(flags, command="train")
    assert (launched.records_per_step, launched.groups_per_step) == (24, 6)
    with pytest.raises(ConfigError, match=r"2 disagrees with 4 ranks x per_device.* = 24 records = 6 groups of 4"):
        RunConfig.parse([*flags, "--groups_per_step=2"], command="train")


def test_the_saved_configuration_says_the_ranks_to_a_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    RunConfig.parse(["--per_device_train_batch_size=4", "--num_generations=4"], command="train").save(tmp_path / "c")
    monkeypatch.delenv("WORLD_SIZE")
    sampler = RunConfig.parse(["--config", str(tmp_path / "c")], command="sample")
    assert sampler.groups_per_step == 4
    assert RunConfig.parse(["--data_parallel_size=3"], command="sample").groups_per_step == 3
    Launch.of(TORCHRUN).require_size(sampler.optim.data_parallel_size)
    with pytest.raises(ConfigError, match=r"4 ranks are set .* the launcher started 1: give --data_parallel_size 1"):
        Launch().require_size(sampler.optim.data_parallel_size)


def exported(config_file: Path) -> dict[str, str]:
    """What accelerate itself makes of a file, without starting anything."""
    code = """
import json, sys
from accelerate.commands.launch import launch_command_parser, _validate_launch_command
from accelerate.utils.launch import prepare_multi_gpu_env
args = launch_command_parser().parse_args(["--config_file", sys.argv[1], "-m", "agentrl"])
args, _, _ = _validate_launch_command(args)
args.main_process_port = 0
print("EXPORTED" + json.dumps(prepare_multi_gpu_env(args)))
"""
    printed = subprocess.run(
        [sys.executable, "-c", code, str(config_file)], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    given: dict[str, Any] = yaml.safe_load(printed[printed.index("EXPORTED") + len("EXPORTED") :])
    return {name: value for name, value in given.items() if os.environ.get(name) != value}


def test_the_shipped_configuration_is_honoured_without_a_word(tmp_path: Path) -> None:
    environ = exported(SHIPPED)
    assert environ["FSDP_VERSION"] == "2"
    asked = take_accelerate(environ)
    assert (asked.reshard_after_forward, asked.activation_checkpointing, asked.notices) == (True, False, ())
    assert not [name for name in environ if name.startswith(("FSDP_", "ACCELERATE_"))], "libraries would act on them"


def test_keys_of_the_configuration_are_honoured_named_or_refused(tmp_path: Path) -> None:
    values = yaml.safe_load(SHIPPED.read_text())
    values["fsdp_config"] |= {
        "fsdp_reshard_after_forward": False,
        "fsdp_activation_checkpointing": True,
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer",
    }
    changed = tmp_path / "changed.yml"
    changed.write_text(yaml.safe_dump(values))
    asked = take_accelerate(exported(changed))
    assert (asked.reshard_after_forward, asked.activation_checkpointing) == (False, True)
    named = [notice.split("config_file: ")[1].split(" ")[0] for notice in asked.notices]
    assert named == [
        "fsdp_transformer_layer_cls_to_wrap",
        "fsdp_state_dict_type",
        "fsdp_cpu_ram_efficient_loading",
    ]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_with_what_to_write(name: str) -> None:
    with pytest.raises(ConfigError, match=r"accelerate launch --config_file: .*\(found something\)"):
        take_accelerate({"ACCELERATE_USE_FSDP": "true", name: "something"})


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_does_nothing_says_so(name: str) -> None:
    (notice,) = take_accelerate({"ACCELERATE_USE_FSDP": "true", name: "something"}).notices
    assert "does nothing" in notice


def test_processes_that_a_rank_starts_are_no_ranks() -> None:
    environ = TORCHRUN | {
        "TORCHELASTIC_RUN_ID": "x",
        "ACCELERATE_USE_FSDP": "true",
        "FSDP_VERSION": "2",
        "PATH": "/bin",
    }
    assert without_launcher(environ) == {"PATH": "/bin"}
