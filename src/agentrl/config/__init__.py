"""Options of a run: groups of dataclasses, flags and YAML, checked before anything starts."""

from agentrl.config.budget import Budget
from agentrl.config.groups import (
    AlgoOptions,
    AsyncOptions,
    BudgetOptions,
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
    "Budget",
    "BudgetOptions",
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
