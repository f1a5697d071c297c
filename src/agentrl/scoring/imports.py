"""Objects by the path ``module:attr``."""

from __future__ import annotations

import importlib
from typing import Any


def resolve(target: str) -> Any:
    """The object ``module:attr.attr`` names."""
    module, _, attributes = target.partition(":")
    found: Any = importlib.import_module(module)
    for name in attributes.split("."):
        found = getattr(found, name)
    return found
