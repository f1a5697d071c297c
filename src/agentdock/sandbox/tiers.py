"""Which tiers this machine has, found out by running something in each, strongest first."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentdock.sandbox import container, namespaces
from agentdock.sandbox.limits import Containment

TIERS = ("container", "namespaces", "limits")


class TierMissing(Exception):
    """No tier as strong as required works here; the message says why for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The tier in use, what it holds, and why each stronger one is not used."""

    containment: Containment
    gvisor: bool
    missing: tuple[tuple[str, str], ...]


Probe = Callable[[str, bool, bool], Awaitable[tuple[str, str]]]
"""Run a child in (tier, own user, gVisor) that reports; return its report, and what went wrong."""


async def choose(tiers: Sequence[str], min_tier: str, image: str, probe: Probe) -> Choice:
    """The first of ``tiers`` that works; raise ``TierMissing`` if it would be weaker than ``min_tier``."""
    missing: list[tuple[str, str]] = []
    for tier in (tier for tier in tiers if TIERS.index(tier) <= TIERS.index(min_tier)):
        reason = _cannot_try(tier, image)
        if reason:
            missing.append((tier, reason))
            continue
        gvisor = tier == "container" and container.has_gvisor()
        for own_user in (True, False) if may_change_user() else (False,):
            report, reason = await probe(tier, own_user, gvisor)
            if not reason:
                held = Containment(tier=tier, own_user=own_user, **json.loads(report))
                return Choice(containment=held, gvisor=gvisor, missing=tuple(missing))
        missing.append((tier, reason))
    told = "; ".join(f"{tier}: {reason}" for tier, reason in missing)
    raise TierMissing(f"no sandbox of tier {min_tier!r} or stronger works here ({told})")


def may_change_user() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0


def _cannot_try(tier: str, image: str) -> str:
    match tier:
        case "container":
            return container.missing(image)
        case "namespaces":
            return namespaces.missing()
        case _:
            return ""
