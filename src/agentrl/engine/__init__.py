"""Engines behind one protocol."""

from agentrl.engine.base import Canary, ChatEngine, Confirmation, Engine, EngineHealth, WeightSource

__all__ = ["Canary", "ChatEngine", "Confirmation", "Engine", "EngineHealth", "WeightSource"]
