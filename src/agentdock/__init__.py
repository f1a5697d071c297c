"""AgentDock: MCP tool servers, supervised, behind one door."""
