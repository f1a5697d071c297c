"""The name somebody may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "model": "model_name_or_path",
    "model_path": "model_name_or_path",
    "tools": "mcp_manager_url",
    "mcp_servers": "mcp_manager_url",
    "group_size": "num_generations",
    "loss_calculator": "loss_calculater",
    "algorithm": "loss_calculater",
    "resume": "resume_from_checkpoint",
    "max_length": "max_tokens",
    "dataset": "train_file",
}
"""What other projects call it, or how it is spelled."""


def nearest(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """``; did you mean X?``, or nothing when no known name is close."""
    names = list(known)
    close = [other] if (other := OTHER_NAMES.get(name)) in names else difflib.get_close_matches(name, names, 1, 0.6)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
