"""How many processes train together. One; a launcher that starts more is refused before anything loads."""

from __future__ import annotations

from collections.abc import Mapping

from agentrl.errors import ConfigError


def require_one_rank(environ: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` when ``torchrun`` or ``accelerate launch`` started several ranks."""
    given = environ.get("WORLD_SIZE", "1")
    if given != "1":
        raise ConfigError(
            f"this version trains on one rank, but the launcher started {given}: they would train {given} separate "
            "models. Start `agentrl train` without torchrun, or with --nproc_per_node 1",
            setting="WORLD_SIZE",
        )
