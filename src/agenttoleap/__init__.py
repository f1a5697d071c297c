"""AgentToLeaP: benchmarks, graders and statistics over the agent loop."""
