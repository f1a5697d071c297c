"""Commands; the only place where rooms are wired together."""

from agentrl.cli.main import main

__all__ = ["main"]
