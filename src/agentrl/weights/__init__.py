"""Publishers: ways of bringing weights to engines."""

from agentrl.weights.base import EngineUrls, Publication, Publisher

__all__ = ["EngineUrls", "Publication", "Publisher"]
