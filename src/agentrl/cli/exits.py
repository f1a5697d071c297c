"""An error as a person meets it: one message and an exit code.

Exit codes: 0 done, 1 the run failed, 2 a setting is wrong and nothing was started, 130 interrupted.
"""

from __future__ import annotations

import sys

from agentrl.errors import AgentRLError, ConfigError, Interrupted

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


def tell(error: AgentRLError) -> int:
    """Print ``error``; returns the exit code."""
    if isinstance(error, ConfigError):
        print(f"agentrl: error: {error}", file=sys.stderr)
        return USAGE_ERROR
    if isinstance(error, Interrupted):
        print(f"agentrl: {error}", file=sys.stderr)
        return INTERRUPTED
    print(f"agentrl: {type(error).__name__}: {error}", file=sys.stderr)
    return FAILED
