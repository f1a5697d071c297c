"""Recommended sets of settings by loss: ``--preset NAME`` applies one, what is given wins.

Without a preset the defaults are the reference's; ``open_settings`` says where those differ from what is recommended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from agentrl.config.groups import AlgoOptions
from agentrl.errors import ConfigError

PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # The two sets that the seed and the reference's scripts recommend.
        "grpo": {"loss_calculater": "GRPO", "token_level_loss": True},
        "minirl": {
            "loss_calculater": "MINIRL",
            "token_level_loss": False,
            "strict_in_bound": True,
            "skip_length_normalization": True,
        },
        # arXiv 2507.18071, section 5.1: limits of the sequence ratio 1 - 3e-4 and 1 + 4e-4, mean over sequences.
        "gspo": {
            "loss_calculater": "GSPO",
            "token_level_loss": False,
            "skip_length_normalization": False,
            "epsilon": 3e-4,
            "epsilon_higher": 1e-4,
            "advantage_estimator": "mean_std",
        },
        # arXiv 2506.13585: no lower cap, token mean. The upper cap has no published value; 5 is an absolute ratio.
        "cispo": {
            "loss_calculater": "CISPO",
            "token_level_loss": True,
            "cispo_cap_low": 0.0,
            "cispo_cap_high": 5.0,
            "advantage_estimator": "mean_std",
        },
        # arXiv 2503.14476: clip-higher 0.2 / 0.28, token mean, groups without signal are not trained.
        "dapo": {
            "loss_calculater": "DAPO",
            "token_level_loss": True,
            "epsilon": 0.2,
            "epsilon_higher": 0.08,
            "drop_zero_advantage": True,
            "advantage_estimator": "mean_std",
        },
    }
)


def with_preset(groups: Mapping[type, Any], given: frozenset[str]) -> dict[type, Any]:
    """The option groups with the settings of the chosen preset where none was given."""
    algo: AlgoOptions = groups[AlgoOptions]
    if algo.preset == "none":
        return dict(groups)
    preset = PRESETS[algo.preset]
    if "loss_calculater" in given and algo.loss_calculater != preset["loss_calculater"]:
        raise ConfigError(
            f"{algo.preset} is a set for {preset['loss_calculater']}, but --loss_calculater says "
            f"{algo.loss_calculater}: leave one of the two out",
            setting="--preset",
        )
    open_values = {name: value for name, value in preset.items() if name not in given}
    return {**groups, AlgoOptions: dataclasses.replace(algo, **open_values)}


def open_settings(algo: AlgoOptions, given: frozenset[str]) -> tuple[str, dict[str, Any]]:
    """For a run that names a loss: its preset, and what that would change of the settings left open."""
    names = [name for name, preset in PRESETS.items() if preset["loss_calculater"] == algo.loss_calculater]
    if not names or algo.preset != "none" or "loss_calculater" not in given:
        return "", {}
    preset = PRESETS[names[0]]
    changes = {name: value for name, value in preset.items() if name not in given and getattr(algo, name) != value}
    return names[0], changes
