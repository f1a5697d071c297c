"""``python -m agentdock``."""

import sys

from agentdock.cli import main

if __name__ == "__main__":
    sys.exit(main())
