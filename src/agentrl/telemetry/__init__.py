"""Metrics that reduce rightly, spans, and sinks."""

from agentrl.telemetry.log import JsonlSink, Sink, StepRecord, Telemetry
from agentrl.telemetry.metrics import Last, Max, Mean, Metric, Metrics, Sum
from agentrl.telemetry.timings import Stopwatch, TimingsWindow, reduced

__all__ = [
    "JsonlSink",
    "Last",
    "Max",
    "Mean",
    "Metric",
    "Metrics",
    "Sink",
    "StepRecord",
    "Stopwatch",
    "Sum",
    "Telemetry",
    "TimingsWindow",
    "reduced",
]
