"""Metrics that reduce rightly, spans, and sinks."""

from agentrl.telemetry.log import JsonlSink, Sink, StepRecord, Telemetry
from agentrl.telemetry.metrics import Last, Max, Mean, Metric, Metrics, Sum

__all__ = ["JsonlSink", "Last", "Max", "Mean", "Metric", "Metrics", "Sink", "StepRecord", "Sum", "Telemetry"]
