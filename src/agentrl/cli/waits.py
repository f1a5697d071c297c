"""Who waits for whom, as sentences: one for every process of a run, and one for all that nobody does."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from itertools import pairwise

from agentrl.cli.standing import LATE_SECONDS, Standing, service_state
from agentrl.store import RunningGroup
from agentrl.types import InferenceService, Split, Worker

UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
AWAITS_GROUPS = re.compile(r"samplers to finish (\d+) groups for step (\d+)")


def sentences(standing: Standing) -> list[str]:
    """Each is a whole sentence without its full stop. Trouble comes first."""
    return [
        *(said for worker in standing.workers if (said := trouble(standing, worker))),
        *(said for service in standing.services if (said := outage(standing, service))),
        *(doing(standing, worker) for worker in standing.workers if worker.alive),
        *left_undone(standing),
    ]


def name(worker: Worker) -> str:
    """``sampler 4711``, with its host when that is not this one."""
    elsewhere = f"@{worker.host}" if worker.host != socket.gethostname() else ""
    return f"{worker.kind or 'worker'} {worker.pid}{elsewhere}"


def trouble(standing: Standing, worker: Worker) -> str:
    if not worker.alive:
        held = standing.groups_of(worker)
        lost = f"; others may take its {counted(len(held), 'group')}" if held else ""
        return f"{name(worker)} DIED: last heartbeat {duration(worker.age_seconds)} ago, it never left{lost}"
    if worker.age_seconds > LATE_SECONDS:
        return f"{name(worker)} is LATE: no heartbeat for {duration(worker.age_seconds)}"
    return ""


def outage(standing: Standing, service: InferenceService) -> str:
    """Engines of a run that has ended are down, and nothing is wrong with that unless they said so."""
    why = f": {service.last_error}" if service.last_error else ""
    state = service_state(standing, service)
    if state == "UP" or (standing.state != "running" and not why):
        return ""
    if state == "SILENT":
        return f"engine {service.url} is registered as UP and was not heard of for {duration(service.age_seconds)}{why}"
    return f"engine {service.url} is {state} for {duration(service.age_seconds)}{why}"


def doing(standing: Standing, worker: Worker) -> str:
    held = standing.groups_of(worker)
    if held:
        return f"{name(worker)} plays {counted(len(held), 'group')}, {oldest(held)}"
    if not worker.waiting_for or is_over(standing, worker):
        return f"{name(worker)} works{work_of(standing, worker)}"
    return f"{name(worker)} waits for {worker.waiting_for}{progress(standing, worker)}{time_left(standing, worker)}"


def is_over(standing: Standing, worker: Worker) -> bool:
    """What it said with its last heartbeat was of a step that is trained by now."""
    asked = AWAITS_GROUPS.match(worker.waiting_for)
    return asked is not None and standing.latest is not None and int(asked[2]) <= standing.latest.step


def time_left(standing: Standing, worker: Worker) -> str:
    if worker.deadline is None:
        return ""
    left = worker.deadline - standing.at
    return f" (gives up in {duration(left)})" if left > 0 else " (its time is over)"


def work_of(standing: Standing, worker: Worker) -> str:
    if worker.kind == "trainer" and standing.latest is not None:
        return f" on step {standing.latest.step + 1}"
    if worker.kind == "engine":
        running = sum(service.running for service in standing.services if service_state(standing, service) == "UP")
        return f": {counted(running, 'request')} in progress on all engines"
    return ""


def progress(standing: Standing, worker: Worker) -> str:
    """What is there already of the groups a trainer waits for."""
    asked = AWAITS_GROUPS.match(worker.waiting_for)
    if asked is None:
        return ""
    train = standing.queues[Split.TRAIN]
    missing = max(0, int(asked[1]) - train.ready)
    return f": {train.ready} ready, {missing} more to come, {train.running} being played"


def oldest(groups: list[RunningGroup]) -> str:
    """``groups`` come with the one claimed first at first."""
    group = groups[0]
    return f"oldest {duration(group.age_seconds)}, {group.num_done} of {group.num_slots} episodes done"


def left_undone(standing: Standing) -> Iterator[str]:
    """Work that waits for a process nobody started; of a run that is finished, what it had no need of."""
    orphans, queues = standing.orphans(), standing.queues
    created = sum(counts.created for counts in queues.values())
    if standing.state == "finished":
        rest = {"not played": created + len(orphans), "played and not trained": standing.reserve}
        said = ", ".join(f"{counted(count, 'group')} {what}" for what, count in rest.items() if count)
        yield "nobody: the run is finished" + (f"; left over: {said}" if said else "")
        return
    if (created or orphans) and not standing.alive("sampler"):
        lost = f" ({len(orphans)} of them begun)" if orphans else ""
        yield f"{counted(created + len(orphans), 'group')} to play{lost}, and no sampler is alive"
    elif orphans:
        yield f"{counted(len(orphans), 'group')} lost their sampler and will be played by another"
    if standing.reserve and not standing.alive("trainer"):
        yield f"{counted(standing.reserve, 'finished group')} to train, and no trainer is alive"


def duration(seconds: float) -> str:
    """3 s, 4 min 10 s, 2 h 5 min, 3 d 4 h."""
    whole = max(0, round(seconds))
    for (size, unit), (smaller, small_unit) in pairwise(UNITS):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // smaller} {small_unit}"
    return f"{whole} s"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
