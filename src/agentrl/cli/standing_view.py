"""A ``Standing`` as a person reads it: tables of at most 80 columns, then who waits for whom."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from agentrl.cli.standing import Standing, service_state, worker_state
from agentrl.cli.waits import duration, name
from agentrl.config.budget import money_text
from agentrl.rollout.budget import what_follows
from agentrl.store import QueueCounts
from agentrl.types import Split

SHOWN_GROUPS = 6
TOOL_CALLS = "calls/tool:"
QUEUE_COLUMNS = ("created", "running", "ready", "taken", "trained", "no rows", "dropped", "abandoned")
COLOURS = {
    "running": "green",
    "finished": "green",
    "failed": "red",
    "crashed": "red",
    "interrupted": "yellow",
    "UP": "green",
    "DRAINING": "yellow",
    "SILENT": "red",
    "DOWN": "red",
    "late": "yellow",
    "dead": "red",
}


def shown(standing: Standing, waits: Sequence[str]) -> RenderableType:
    return Group(*parts(standing, waits))


def parts(standing: Standing, waits: Sequence[str]) -> Iterator[RenderableType]:
    yield from head(standing)
    yield section("Groups by what became of them", queues(standing.queues))
    yield from reasons(standing.queues)
    if standing.groups:
        yield section("In progress", groups(standing))
    if standing.services:
        yield section("Engines", services(standing))
    if standing.workers:
        yield section("Processes", workers(standing))
    if standing.spending:
        yield section("Spent", Text(spent(standing)))
    if standing.budget.limits or standing.budget_reached:
        yield section("Budget", Text(budget(standing)))
    if waits:
        yield section("Who waits for whom", bullets(waits))


def head(standing: Standing) -> Iterator[Text]:
    state = Text(standing.state, style=f"bold {COLOURS.get(standing.state, 'default')}")
    yield Text.assemble((standing.run, "bold"), ": ", state, f", in {standing.place}")
    yield Text(", ".join(facts(standing)))
    if standing.evaluations:
        yield Text(f"held-out success {success(standing.evaluations)}")
    if standing.end is not None and standing.state != "running":
        first, *more = str(standing.end["message"]).splitlines() or [""]
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(standing.end["at"]))
        ago = duration(standing.at - standing.end["at"])
        yield Text(f"ended {when}, {ago} ago" + (f": {first}" if first else ""))
        yield from (Text(line) for line in more)
    elif standing.state == "crashed":
        yield Text(f"its processes are gone without a word{way_on(standing)}")


def way_on(standing: Standing) -> str:
    """Of what trains: an evaluation is just played again."""
    train = standing.queues[Split.TRAIN]
    trains = train.unfinished + train.completed > 0
    return f"; go on with --run_name {standing.run} --resume_from_checkpoint auto" if trains else ""


def facts(standing: Standing) -> Iterator[str]:
    latest, last = standing.latest, standing.last_step
    if latest is None:
        yield "no weights published yet"
    else:
        planned = f" of {standing.planned_steps}" if standing.planned_steps else ""
        yield f"step {latest.step}{planned}"
        yield f"version {latest.version}"
    if "staleness" in last:
        yield f"mean staleness {last['staleness']:.2f}"
    if "reward" in last:
        yield f"reward {last['reward']:.3f}"
    if "tokens_per_second" in last:
        yield f"{last['tokens_per_second']:,.0f} tokens/s"


def success(rounds: Sequence[Mapping[str, float]]) -> str:
    """The first and the last round, and the best one between them where it beats both."""
    first, last = rounds[0], rounds[-1]
    best = max(rounds, key=lambda told: told["success"])
    shown = [first, *([best] if best["success"] > max(first["success"], last["success"]) else []), last]
    said = [f"{told['success']:.3f} at step {told['step']:.0f}" for told in (shown if len(rounds) > 1 else [first])]
    return ", ".join(said)


def section(title: str, body: RenderableType) -> RenderableType:
    return Group(Text(f"\n{title}", style="bold"), Padding(body, (0, 0, 0, 2)))


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    made = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for column in columns:
        made.add_column(
            column,
            justify="left" if column in left else "right",
            overflow="fold" if column in left else "ellipsis",
            no_wrap=column not in left,
        )
    return made


def queues(found: Mapping[Split, QueueCounts]) -> Table:
    made = table("", *QUEUE_COLUMNS, left=("",))
    for split, counts in found.items():
        numbers = (
            counts.created,
            counts.running,
            counts.ready,
            counts.taken,
            counts.trained,
            counts.empty,
            sum(counts.dropped.values()),
            sum(counts.abandoned.values()),
        )
        if split is Split.TRAIN or any(numbers):
            made.add_row(str(split), *(str(number) if number else "-" for number in numbers))
    return made


def reasons(found: Mapping[Split, QueueCounts]) -> Iterator[Text]:
    for split, counts in found.items():
        for what, by_reason in (("dropped", counts.dropped), ("abandoned", counts.abandoned)):
            said = ", ".join(
                f"{number} {reason or 'without a reason'}" for reason, number in by_reason.items() if number
            )
            if said:
                yield Text(f"  {split} {what}: {said}", style="dim")
        if counts.short or counts.left_out:
            yield Text(f"  {split} missing in smaller steps: {counts.short}, in steps left out: {counts.left_out}")
        if counts.pushed_again:
            yield Text(f"  {split} pushed again because they went stale: {counts.pushed_again}", style="dim")


def groups(standing: Standing) -> RenderableType:
    made = table("group", "sampler", "age", "episodes", left=("group", "sampler"))
    owners = {worker.id: name(worker) for worker in standing.workers}
    for group in standing.groups[:SHOWN_GROUPS]:
        done = f"{group.num_done}/{group.num_slots}"
        owner = owners.get(group.owner, "nobody")
        made.add_row(group.task.removeprefix(f"{standing.run}/"), owner, duration(group.age_seconds), done)
    more = len(standing.groups) - SHOWN_GROUPS
    return Group(made, Text(f"and {more} younger ones", style="dim")) if more > 0 else made


def services(standing: Standing) -> Table:
    made = table("url", "kind", "state", "version", "running", "heard of", left=("url", "kind", "state"))
    for service in standing.services:
        state = service_state(standing, service)
        made.add_row(
            service.url,
            service.kind,
            Text(state, style=COLOURS[state]),
            "-" if service.policy_version is None else str(service.policy_version),
            str(service.running),
            f"{duration(service.age_seconds)} ago",
        )
    return made


def workers(standing: Standing) -> Table:
    made = table("process", "state", "last heartbeat", "groups", "host", left=("process", "state", "host"))
    for worker in standing.workers:
        state = worker_state(worker)
        held = len(standing.groups_of(worker))
        made.add_row(
            f"{worker.kind or 'worker'} {worker.pid}",
            Text(state, style=COLOURS.get(state, "default")),
            f"{duration(worker.age_seconds)} ago",
            str(held) if held else "-",
            worker.host,
        )
    return made


def budget(standing: Standing) -> str:
    """What was used of each limit, and what becomes of the run at one of them."""
    limits, spending = standing.budget, standing.spending
    said = [
        f"{limits.in_words(name, spending)} ({used / limits.limits[name]:.0%})"
        for name, used in limits.used(spending).items()
    ]
    reached = standing.budget_reached
    if reached is None:
        return f"{', '.join(said)}; then {limits.action}"
    return "\n".join([*([", ".join(said)] if said else []), what_follows(reached["used_up"], reached["action"])])


def spent(standing: Standing) -> str:
    """Money and model calls first, then tokens, calls by tool, and whatever else was counted."""
    spending, prices = standing.spending, standing.budget.prices
    known = ("calls", "prompt_tokens", "sampled_tokens")
    said = [
        f"{spending[name]:,.0f} {'model calls' if name == 'calls' else name.replace('_', ' ')}"
        for name in known
        if name in spending
    ]
    by_tool = {name.removeprefix(TOOL_CALLS): num for name, num in spending.items() if name.startswith(TOOL_CALLS)}
    if by_tool:
        each = ", ".join(f"{name} {num:,.0f}" for name, num in sorted(by_tool.items()))
        said.append(f"{sum(by_tool.values()):,.0f} tool calls ({each})")
    rest = {name: num for name, num in spending.items() if name not in known and not name.startswith(TOOL_CALLS)}
    if prices is not None:
        said.insert(0, f"{money_text(prices.cost(spending))} {prices.currency}")
    return ", ".join([*said, *(f"{num:,.6g} {name}" for name, num in sorted(rest.items()))])


def bullets(lines: Sequence[str]) -> Table:
    made = Table.grid(padding=(0, 1, 0, 0))
    for line in lines:
        made.add_row("*", Text(line))
    return made
