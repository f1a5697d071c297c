"""What task files need to know of scorers: which names exist, and which of them need a truth."""

from __future__ import annotations

from typing import Any

from agentrl import scoring

BUILT_IN = frozenset({"agentcpm", "asearcher", "llm_judge", "math", "exact", "numeric", "contains", "f1", "none"})


def names() -> frozenset[str]:
    """Built-in scorers and those registered in this process."""
    factory: Any = getattr(scoring, "MCPScorerFactory", None)
    return BUILT_IN.union(factory.names() if factory else ())


def needs_truth(scorer: Any) -> bool:
    """Whether a row with this scorer must have an answer. Raises ``ConfigError`` for a scorer that cannot be found."""
    factory: Any = getattr(scoring, "MCPScorerFactory", None)
    if scorer == "none" or factory is None:
        return scorer != "none"
    return True if str(scorer).startswith("tool:") else factory.needs_truth(scorer)
