"""``Launch``: what ``torchrun`` or ``accelerate launch`` says about this process, read from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from agentrl.errors import ConfigError

LAUNCHER = re.compile(r"(ACCELERATE|FSDP|TORCHELASTIC|GROUP|ROLE|LOCAL)_.*|RANK|WORLD_SIZE|MASTER_(ADDR|PORT)")
"""Variables by which a launcher speaks to its ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """``rank`` of ``world_size``, ``local_rank`` of ``local_world_size`` on this host. Without a launcher: one rank."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        world_size = number(environ, "WORLD_SIZE", 1)
        rank = number(environ, "RANK", 0)
        if world_size < 1 or not 0 <= rank < world_size:
            raise ConfigError(f"{rank} is no rank of WORLD_SIZE {world_size}", setting="RANK")
        launch = cls(
            rank=rank,
            world_size=world_size,
            local_rank=number(environ, "LOCAL_RANK", rank),
            local_world_size=number(environ, "LOCAL_WORLD_SIZE", world_size),
        )
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in environ]
        if world_size > 1 and missing:
            raise ConfigError(
                f"{world_size} ranks need {', '.join(missing)} too: start with torchrun or accelerate launch, or unset "
                "WORLD_SIZE to train on one rank",
                setting="WORLD_SIZE",
            )
        return launch

    @property
    def num_machines(self) -> int:
        return -(-self.world_size // self.local_world_size)

    def require_store(self, url: str) -> None:
        """Raise ``ConfigError`` when machines other than rank 0's could not reach the store."""
        if self.num_machines > 1 and url.startswith("sqlite:"):
            raise ConfigError(
                f"{self.world_size} ranks on {self.num_machines} machines, but {url} is a file of one of them: several "
                "machines need a database server, --db_connection_string mongodb://USER:PASSWORD@HOST:27017/",
                setting="--db_connection_string",
            )

    def require_size(self, data_parallel_size: int) -> None:
        """Raise ``ConfigError`` when the batch was reckoned for another number of ranks."""
        if data_parallel_size != self.world_size:
            raise ConfigError(
                f"{data_parallel_size} ranks are set (also for the samplers of this run), but the launcher started "
                f"{self.world_size}: give --data_parallel_size {self.world_size} to all of them, or start "
                f"{data_parallel_size}",
                setting="--data_parallel_size",
            )


def number(environ: Mapping[str, str], name: str, default: int) -> int:
    value = environ.get(name, "")
    try:
        return int(value) if value else default
    except ValueError:
        raise ConfigError(f"expects a whole number, got {value!r}", setting=name) from None


def without_launcher(environ: Mapping[str, str]) -> dict[str, str]:
    """For processes that a rank starts: they are no ranks."""
    return {name: value for name, value in environ.items() if not LAUNCHER.fullmatch(name)}
