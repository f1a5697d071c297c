"""The front of the dock: REST, MCP, health and metrics on one port, behind one token."""
