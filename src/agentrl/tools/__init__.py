"""Tools behind one protocol: MCP servers, and a scripted set for tests and demos."""

from agentrl.tools.base import ToolSession, Toolset
from agentrl.tools.mcp import McpToolset
from agentrl.tools.scripted import ScriptedTool, ScriptedToolset
from agentrl.tools.sources import parse_sources

__all__ = ["McpToolset", "ScriptedTool", "ScriptedToolset", "ToolSession", "Toolset", "parse_sources"]
