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
    SftOptimOptions,
    SftOptions,
    TaskOptions,
    ToolOptions,
)
from agentrl.config.run import RunConfig
from agentrl.config.sft import SftConfig

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
    "SftConfig",
    "SftOptimOptions",
    "SftOptions",
    "TaskOptions",
    "ToolOptions",
]
