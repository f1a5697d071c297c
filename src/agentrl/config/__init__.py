"""Options of a run: groups of dataclasses, flags and YAML, checked before anything starts."""

from agentrl.config.groups import (
    AlgoOptions,
    AsyncOptions,
    CheckpointOptions,
    EngineOptions,
    ModelOptions,
    OptimOptions,
    RolloutOptions,
    RunOptions,
    ServeOptions,
    TaskOptions,
    ToolOptions,
)
from agentrl.config.run import RunConfig

__all__ = [
    "AlgoOptions",
    "AsyncOptions",
    "CheckpointOptions",
    "EngineOptions",
    "ModelOptions",
    "OptimOptions",
    "RolloutOptions",
    "RunConfig",
    "RunOptions",
    "ServeOptions",
    "TaskOptions",
    "ToolOptions",
]
