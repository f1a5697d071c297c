"""Tool servers that ship with AgentDock, each run as ``python -m agentdock.servers.NAME`` over stdio."""
