"""The end of a run as a person reads it: two trajectories, what became of everything, and the two lines that matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from agentrl.cli.evaluation import Evaluation
from agentrl.cli.view import show_trajectory
from agentrl.config import RunConfig
from agentrl.store import Store
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
