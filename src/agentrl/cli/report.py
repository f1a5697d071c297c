"""The end of a run as a person reads it: two trajectories, what became of everything, and the two lines that matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from agentrl.cli.evaluation import Evaluation
from agentrl.cli.feed import steps_of_groups
from agentrl.cli.feeder import PLANNED_GROUPS
from agentrl.cli.view import show_trajectory
from agentrl.config import RunConfig
from agentrl.config.budget import BUDGET_REACHED
from agentrl.store import Store
from agentrl.store.base import SET_ASIDE
from agentrl.types import Record, RowStatus, Split, TaskStatus


async def report(
    config: RunConfig, console: Console, store: Store, before: Evaluation | None, after: Evaluation | None
) -> None:
    """One trajectory from before and one from after, the tally, the run folder, and the held-out success."""
    if before is not None and after is not None:
        decode = decoder(config)
        for title, evaluation, record in zip(
            ("before training", "after training"), (before, after), telling_pair(before, after), strict=True
        ):
            turns = await store.find("turn", record=record.id)
            show_trajectory(console, title, record, turns, [decode(turn.token_ids) for turn in turns])
            if evaluation.num_unscored:
                console.print(f"{title}: {evaluation.num_unscored} held-out records could not be scored")
    console.print(await tally(store), highlight=False, soft_wrap=True)
    for warning in await warnings(config, store):
        console.print(f"warning: {warning}", style="yellow", highlight=False, soft_wrap=True, markup=False)
    console.print(f"run folder: {config.folder}", highlight=False, soft_wrap=True)
    if before is not None and after is not None:
        console.print(f"held-out success: {before.success:.3f} -> {after.success:.3f}", highlight=False)


async def tally(store: Store) -> str:
    """Steps trained, and what became of every training group and row: nothing is skipped in silence."""
    last = await store.latest_version()
    tasks = await store.find("task", split=Split.TRAIN)
    groups = Counter(f"{task.status} {task.reason}".strip() for task in tasks if task.status != TaskStatus.CREATED)
    rows = {status: await store.count("row", status=status) for status in RowStatus}
    return (
        f"trained {last.step if last else 0} steps; groups: {counted(groups)}; "
        f"rows: {counted({str(status): count for status, count in rows.items() if count})}"
    )


async def warnings(config: RunConfig, store: Store) -> list[str]:
    """What a person should know before trusting the result."""
    last = await store.latest_version()
    steps = last.step if last else 0
    tasks = await store.count("task", split=Split.TRAIN)
    silent = await store.count("task", split=Split.TRAIN, status=TaskStatus.ABANDONED, reason="no_signal")
    unplayed = await store.count("task", split=Split.TRAIN, status=TaskStatus.ABANDONED, reason=SET_ASIDE)
    reached = await store.get_state(BUDGET_REACHED)
    said = []
    if reached is not None and unplayed:
        said.append(f"the budget is used up ({reached['used_up']}), so {unplayed} groups were not played")
    elif steps == 0 and tasks:
        said.append(f"nothing was trained: in {silent} of {tasks} groups all episodes scored the same")
    elif steps < steps_of_groups(config, await store.get_state(PLANNED_GROUPS) or tasks):
        said.append(
            f"the tasks gave {steps} steps, fewer than planned, because {silent} groups scored all the same; "
            "more tasks, a higher --num_train_epochs or --dynamic_sampling true give more"
        )
    counts = await store.queue(Split.TRAIN)
    if counts.short or counts.left_out:
        said.append(
            f"steps were trained with {counts.short} groups fewer than asked for, and steps of {counts.left_out} "
            f"groups left out: more than {config.max_refills} groups of a step had no signal (--dynamic_sampling_limit)"
        )
    records = await store.find("record")
    calls, failed = sum(record.tool_calls for record in records), sum(record.tool_errors for record in records)
    if failed * 2 > calls:
        said.append(f"{failed} of {calls} tool calls failed; see {config.folder / 'logs' / 'sampler.log'}")
    return said


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"


def telling_pair(before: Evaluation, after: Evaluation) -> tuple[Record, Record]:
    """Records of one task: the first that training made better, or else the first."""
    pairs = list(zip(before.records, after.records, strict=True))
    return next((pair for pair in pairs if (pair[0].score or 0.0) < (pair[1].score or 0.0)), pairs[0])


def decoder(config: RunConfig) -> Callable[[Sequence[int]], str]:
    """Token ids of a turn as text."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(config.model.model_name_or_path)
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))
