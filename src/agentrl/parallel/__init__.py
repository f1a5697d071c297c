"""Ranks: the processes that train one model together. Nothing here needs torch until several ranks join."""

from agentrl.parallel.launch import Launch, without_launcher
from agentrl.parallel.ranks import ONE_RANK, RankFailed, Ranks

__all__ = ["ONE_RANK", "Launch", "RankFailed", "Ranks", "without_launcher"]
