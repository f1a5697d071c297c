"""``python -m agentrl`` is the ``agentrl`` command."""

import sys

from agentrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
