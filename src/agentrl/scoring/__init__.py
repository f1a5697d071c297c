"""Scores for answers; what may hang, crash or end its process runs in a worker that can be killed."""

from agentrl.scoring.factory import MCPScorerFactory, Scorer, load_scorer_module, require_scorer
from agentrl.scoring.judge import parse_verdict
from agentrl.scoring.math_equality import math_equal
from agentrl.scoring.score import score_answer
from agentrl.scoring.truth import Truth

__all__ = [
    "MCPScorerFactory",
    "Scorer",
    "Truth",
    "load_scorer_module",
    "math_equal",
    "parse_verdict",
    "require_scorer",
    "score_answer",
]
