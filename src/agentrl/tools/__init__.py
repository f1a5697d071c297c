"""Tools behind one protocol: MCP servers, and a scripted set for tests and demos."""

from agentrl.tools.base import ToolSession, Toolset

__all__ = ["ToolSession", "Toolset"]
