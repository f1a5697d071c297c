"""Turns to rows to prefix trees to packed micro-batches; numpy only."""

from agentrl.batch.micro import MicroBatch
from agentrl.batch.padding import PaddedRows, pad_right
from agentrl.batch.plan import StepPlan, plan_step
from agentrl.batch.rows import build_row
from agentrl.batch.segments import SampleError, Segment, segment_events, segment_turns
from agentrl.batch.tree import PrefixTree, TrainedTree, build_tree

__all__ = [
    "MicroBatch",
    "PaddedRows",
    "PrefixTree",
    "SampleError",
    "Segment",
    "StepPlan",
    "TrainedTree",
    "build_row",
    "build_tree",
    "pad_right",
    "plan_step",
    "segment_events",
    "segment_turns",
]
