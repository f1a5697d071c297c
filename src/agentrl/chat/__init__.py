"""Messages to token ids and back, exactly."""

from agentrl.chat.base import Extension, Renderer

__all__ = ["Extension", "Renderer"]
