"""What an accelerate configuration asks of a program that accelerate only launches.

``accelerate launch`` hands its configuration on as variables. Each is honoured, named as without effect, or refused;
then they are removed, because libraries read them too and would act on them on their own.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from dataclasses import dataclass

from agentrl.errors import ConfigError

SETTING = "accelerate launch --config_file"
VARIABLE = re.compile(r"(ACCELERATE|FSDP)_.*")

REFUSED: dict[str, tuple[set[str], str]] = {
    "FSDP_VERSION": ({"2"}, "fsdp_version: only 2 is known here; write fsdp_version: 2"),
    "ACCELERATE_MIXED_PRECISION": (
        {"no"},
        "mixed_precision: training computes in float32; write mixed_precision: 'no'",
    ),
    "FSDP_OFFLOAD_PARAMS": ({"false"}, "fsdp_offload_params: parameters stay on the device; write false"),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": (
        {"false"},
        "fsdp_activation_checkpointing_offload: activations are recomputed, not moved; write false",
    ),
    "FSDP_IGNORED_MODULES": (set(), "fsdp_ignored_modules: every parameter is sharded; leave it out"),
    "ACCELERATE_USE_DEEPSPEED": ({"false"}, "distributed_type DEEPSPEED: FSDP2 trains here; write FSDP"),
    "ACCELERATE_USE_MEGATRON_LM": ({"false"}, "distributed_type MEGATRON_LM: FSDP2 trains here; write FSDP"),
    "ACCELERATE_USE_PARALLELISM_CONFIG": (
        {"false"},
        "parallelism_config: only data parallelism is there; leave it out",
    ),
}
"""Variable -> values that are fine, and what to say of any other."""

WITHOUT_EFFECT: dict[str, tuple[set[str], str]] = {
    "FSDP_AUTO_WRAP_POLICY": (
        {"TRANSFORMER_BASED_WRAP"},
        "fsdp_auto_wrap_policy does nothing: each layer of the model is sharded by itself",
    ),
    "FSDP_TRANSFORMER_CLS_TO_WRAP": (
        set(),
        "fsdp_transformer_layer_cls_to_wrap does nothing: the model's code names its layers",
    ),
    "FSDP_STATE_DICT_TYPE": (
        {"SHARDED_STATE_DICT"},
        "fsdp_state_dict_type does nothing: checkpoints hold a model folder and sharded training state",
    ),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": (
        {"false"},
        "fsdp_cpu_ram_efficient_loading does nothing: every rank reads the model, then keeps its part",
    ),
    "ACCELERATE_DYNAMO_BACKEND": ({"NO"}, "dynamo_backend does nothing: no part of the model is compiled"),
    "ACCELERATE_CPU_AFFINITY": ({"0", "false"}, "enable_cpu_affinity does nothing: set affinity with the launcher"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerate:
    """What is honoured. ``notices`` are for the log of one rank."""

    reshard_after_forward: bool = True
    activation_checkpointing: bool = False
    notices: tuple[str, ...] = ()


def take_accelerate(environ: MutableMapping[str, str]) -> Accelerate:
    """Read and remove the variables; raise ``ConfigError`` for what cannot be done."""
    given = {name: environ.pop(name) for name in sorted(environ) if VARIABLE.fullmatch(name)}
    if given.get("ACCELERATE_USE_FSDP", "false") != "true":
        given = {name: value for name, value in given.items() if not name.startswith("FSDP_")}
    for name, (fine, why) in REFUSED.items():
        if name in given and given[name] not in fine:
            raise ConfigError(f"{why} (found {given[name]})", setting=SETTING)
    return Accelerate(
        reshard_after_forward=flag(given, "FSDP_RESHARD_AFTER_FORWARD", default=True),
        activation_checkpointing=flag(given, "FSDP_ACTIVATION_CHECKPOINTING", default=False),
        notices=tuple(
            f"{SETTING}: {why} (found {given[name]})"
            for name, (fine, why) in WITHOUT_EFFECT.items()
            if name in given and given[name] not in fine
        ),
    )


def flag(given: MutableMapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name, str(default).lower())
    if value not in ("true", "false"):
        raise ConfigError(f"{name.lower()}: expects true or false, found {value}", setting=SETTING)
    return value == "true"
