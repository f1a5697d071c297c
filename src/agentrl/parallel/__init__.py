"""Ranks of the trainer: one for now, and a refusal that says so."""

from agentrl.parallel.ranks import require_one_rank

__all__ = ["require_one_rank"]
