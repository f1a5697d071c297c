"""What a sampler without a group waits for, as ``agentrl status`` and the live view tell it."""

from __future__ import annotations

from agentrl.store.base import Admission, Store
from agentrl.types import Split


async def awaited(store: Store, admission: Admission | None) -> str:
    """From whom the next group will come; asked with every heartbeat of an idle sampler."""
    train, held_out = await store.queue(Split.TRAIN), await store.queue(Split.EVAL)
    if train.created and admission is not None:
        latest = await store.latest_version()
        if latest is None:
            return "the trainer to publish the first weights"
        return f"the trainer to publish step {latest.step + 1} (max_staleness {admission.max_staleness})"
    if train.running + held_out.running:
        return "other samplers to finish their groups"
    return "tasks to be pushed"
