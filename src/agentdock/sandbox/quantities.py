"""Seconds and bytes as people write them on a command line: ``1.5``, ``60s``, ``2min``, ``256KiB``, ``1GiB``."""

from __future__ import annotations

import re

SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
BYTES = {"": 1, "B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def seconds(text: str) -> float:
    """Read a duration; raise ``ValueError`` with the units there are."""
    return _read(text, SECONDS)


def num_bytes(text: str) -> int:
    """Read a size; raise ``ValueError`` with the units there are."""
    return int(_read(text, BYTES))


def written(size: int) -> str:
    """A size in the largest unit that needs no fraction."""
    unit = next(unit for unit in ("GiB", "MiB", "KiB", "B") if size % BYTES[unit] == 0)
    return f"{size // BYTES[unit]} {unit}"


def _read(text: str, units: dict[str, float] | dict[str, int]) -> float:
    found = QUANTITY.fullmatch(text.strip())
    if found is None or found[2] not in units or float(found[1]) <= 0:
        known = ", ".join(unit for unit in units if unit)
        raise ValueError(f"{text!r} is no quantity above zero with one of the units {known}")
    return float(found[1]) * units[found[2]]
