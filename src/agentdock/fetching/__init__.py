"""Fetching from the network on behalf of a model: only public targets, only so much, only so long."""

from agentdock.fetching.fetcher import Fetched, SafeFetcher
from agentdock.fetching.problems import FetchFailed, FetchProblem, FetchRefused

__all__ = ["FetchFailed", "FetchProblem", "FetchRefused", "Fetched", "SafeFetcher"]
