"""AgentRL: reinforcement learning of language-model agents on real MCP tools."""

__version__ = "0.1.0"
DISTRIBUTION = "agentrl-mcp"
"""Name on the package index; every install hint uses it."""
