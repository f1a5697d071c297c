"""Policies: loading, tree attention and chunked log-probs. Names are loaded when asked for: they need torch."""

from importlib.util import find_spec

from agentrl import DISTRIBUTION

for _package in ("torch", "safetensors", "transformers"):
    if find_spec(_package) is None:
        # Said here, and without the seconds that importing torch takes, so that `import agentrl.models` is a check.
        raise ImportError(f"{__name__} needs {_package}: pip install '{DISTRIBUTION}[train]'", name=_package)
