"""``agentrl eval [RUN]``: a model plays held-out tasks; success with its standard error, counts by outcome.

With RUN it is the newest complete checkpoint of that run, with the run's own options; without, the model that
``--model_name_or_path`` names, or engines that already run (``--engine_url``). Every evaluation is a run of its own:
its folder holds the ledger with all trajectories, and ``results.json``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from agentrl.cli.evaluation import FIRST_VERSION, EvaluationRounds
from agentrl.cli.manifest import write_manifest
from agentrl.cli.preflight import check_before_evaluation, require_torch
from agentrl.cli.presence import conducting
from agentrl.cli.report import counted
from agentrl.cli.run import STOP_GRACE_SECONDS, Watch, free_name, interrupts
from agentrl.cli.supervise import Supervisor
from agentrl.cli.view import EvaluationView, MetricsTail
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.store import open_store
from agentrl.telemetry import JsonlSink, Telemetry
from agentrl.types import Record, Split, Task
from agenttoleap.stats import ERROR, summarize

RESULTS = "results.json"
NO_BUDGET = ("--budget=", "--budget_action=stop")
NOT_TRAINED = (
    "--train_file=",
    "--resume_from_checkpoint=",
    "--eval_strategy=steps",
    "--await_weights=false",
    *NO_BUDGET,
)


def main(argv: Sequence[str]) -> int:
    config = configured(argv)
    tasks = check_before_evaluation(config)
    if not config.engine.engine_url and config.engine.engine == "slots":
        require_torch()
    config.save(config.folder / "config.yaml")
    write_manifest(config, config.folder / "manifest.json")
    console = Console()
    records = asyncio.run(play(config, console, tasks))
    results = results_of(config, tasks, records)
    (config.folder / RESULTS).write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    for line in lines_of(results):
        console.print(line, highlight=False, soft_wrap=True)
    return 0


def configured(argv: Sequence[str]) -> RunConfig:
    """The options of RUN under the flags given, with a store and a free folder of the evaluation's own.

    ``engine_url`` is never taken from RUN: its engines serve what the trainer publishes, not the checkpoint.
    """
    run, flags = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    given = parse(flags)
    if "budget" in given.asked.given:
        raise ConfigError("held-out tasks are played whatever they cost: leave it out", setting="--budget")
    output = Path(given.run.output_dir)
    options: list[str] = []
    own_engine = [] if given.engine.engine_url else ["--engine_url"]
    model, name = given.model.model_name_or_path, given.run.run_name or "eval"
    if run:
        folder = output / run
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder} holds no run: it has no config.yaml", setting=run)
        options = ["--config", str(folder / "config.yaml")]
        model = model or str(newest_checkpoint(folder))
        name = given.run.run_name or f"{run}-eval-{Path(model).name.removeprefix('checkpoint-')}"
    own = {
        "run_name": free_name(output, name),
        "output_dir": str(output),
        "model_name_or_path": model,
        "db_connection_string": given.run.db_connection_string,
    }
    placed = [f"--{option}={value}" for option, value in own.items()]
    return parse([*options, *flags, *own_engine, *placed, *NOT_TRAINED, *NO_BUDGET])


def parse(flags: Sequence[str]) -> RunConfig:
    return RunConfig.parse(flags, command="eval [RUN]", description=__doc__ or "")


def newest_checkpoint(folder: Path) -> Path:
    require_torch()
    from agentrl.trainer.checkpoint import newest

    path = newest(folder)
    if path is None:
        raise ConfigError(
            f"{folder} has no complete checkpoint; to evaluate another model of this run's tasks give its folder",
            setting="--model_name_or_path",
        )
    return path


async def play(config: RunConfig, console: Console, tasks: Sequence[Task]) -> Sequence[Record]:
    """One round of all tasks by an engine and a sampler of this host; every exit stops and reaps them."""
    supervisor = Supervisor(config.folder / "logs", env={})
    store = open_store(config.store_url, run=config.run.run_name)
    telemetry = Telemetry([JsonlSink(config.folder / "metrics.jsonl")])
    await store.open()
    rounds = EvaluationRounds(store, config, tasks, telemetry)
    tail = MetricsTail(config.folder / "metrics.jsonl", from_end=True)
    view = EvaluationView(console, tail, num_episodes=len(tasks) * config.rollout.eval_generations)
    try:
        async with conducting(store) as heart:
            with view, interrupts(supervisor) as interrupted:
                watch = Watch(
                    store,
                    supervisor,
                    view,
                    interrupted,
                    heart,
                    on_interrupt="engine and sampler are stopped",
                    way_on="what was played is in the run folder",
                    heartbeat_timeout=config.engine.heartbeat_timeout,
                )
                try:
                    start_children(config, supervisor, view)
                    evaluation = await watch.during("evaluating", rounds.play(FIRST_VERSION))
                finally:
                    await asyncio.to_thread(stop_children, supervisor)
    finally:
        supervisor.kill_all()
        telemetry.close()
        await store.close()
    assert evaluation is not None
    return evaluation.records


def start_children(config: RunConfig, supervisor: Supervisor, view: EvaluationView) -> None:
    common = ["--config", str(config.folder / "config.yaml")]
    if not config.engine.engine_url:
        supervisor.start("engine", ["serve", *common], num_threads=max(1, (os.cpu_count() or 2) - 1))
    supervisor.start("sampler", ["sample", *common, "--train_file=", "--eval_file="], num_threads=1)
    view.say(
        f"[bold]{config.run.run_name}[/]: {config.model.model_name_or_path} plays {config.tasks.eval_file}; "
        f"logs in {config.folder / 'logs'}"
    )


def stop_children(supervisor: Supervisor) -> None:
    supervisor.stop("sampler", grace_seconds=STOP_GRACE_SECONDS, ask=signal.SIGTERM)
    supervisor.stop("engine", grace_seconds=STOP_GRACE_SECONDS)


def results_of(config: RunConfig, tasks: Sequence[Task], records: Sequence[Record]) -> dict[str, Any]:
    """Every task counts ``eval_generations`` times: an episode that broke, or is missing, is an error."""
    played: dict[str, list[Record]] = {task.task_id: [] for task in tasks}
    for record in records:
        played[task_id_of(config, record)].append(record)
    scores = {task: padded(found, config.rollout.eval_generations) for task, found in played.items()}
    missing = sum(config.rollout.eval_generations - len(found) for found in played.values())
    outcomes = Counter(str(record.outcome or record.status) for record in records)
    if missing:
        outcomes["missing"] = missing
    return {
        "run_name": config.run.run_name,
        "folder": str(config.folder),
        "model": config.model.model_name_or_path,
        "eval_file": config.tasks.eval_file,
        "sampling": config.rollout.eval_sampling_params,
        **summarize(scores),
        "outcomes": dict(sorted(outcomes.items())),
        "records": [
            {"id": r.id, "outcome": r.outcome, "status": r.status, "answer": r.final_answer, "score": r.score}
            for r in records
        ],
    }


def padded(records: Sequence[Record], count: int) -> list[float | str]:
    scores: list[float | str] = [ERROR if record.score is None else record.score for record in records]
    return scores + [ERROR] * (count - len(scores))


def task_id_of(config: RunConfig, record: Record) -> str:
    """A record's task is ``run/split/epoch/task_id``; the last part may hold slashes of its own."""
    beginning = f"{config.run.run_name}/{Split.EVAL}/{FIRST_VERSION.version}/"
    return record.task.removeprefix(beginning)


def lines_of(results: dict[str, Any]) -> list[str]:
    success = results["errors_count_as_wrong"]
    lines = [
        f"outcomes: {counted(results['outcomes'])}",
        f"results: {Path(results['folder']) / RESULTS}",
        f"success: {success['mean']:.3f} +- {success['stderr_clustered']:.3f} "
        f"(standard error clustered by question; {success['questions']} questions, {success['rollouts']} episodes)",
    ]
    if results["errors"]:
        finished = results["finished_only"]["mean"]
        lines.insert(
            1,
            f"{results['errors']} episodes could not be scored and count as wrong; without them "
            + ("nothing is left" if finished is None else f"{finished:.3f}"),
        )
    return lines
