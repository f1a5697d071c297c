"""``agentrl sample``: one sampler process: tool servers, tokenizer, engine clients, workers. Imports no torch.

SIGINT lets running groups finish for a while and gives the rest back; SIGTERM gives all of them back at once.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from agentrl.chat import load_renderer
from agentrl.cli.feed import evaluation_tasks, read_tasks
from agentrl.cli.feeder import Feed
from agentrl.cli.joining import wait_for_engine, wait_for_run
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_scorers, check_task_sampling, check_tools
from agentrl.cli.presence import Heart, this_worker
from agentrl.cli.tool_restarts import restarts_told
from agentrl.config import Budget, RunConfig
from agentrl.config.names import nearest
from agentrl.engine.base import TokenEngine
from agentrl.engine.pool import EnginePool
from agentrl.errors import ConfigError, Interrupted
from agentrl.rollout.budget import BUDGET_EVENT, BudgetGuard, way_on
from agentrl.rollout.fleet import FleetWatch
from agentrl.rollout.group import GroupRunner
from agentrl.rollout.pace import Pace
from agentrl.rollout.sampler import MCPSampler, wait_for_service
from agentrl.rollout.scheduler import SamplingScheduler
from agentrl.scoring import load_scorer_module
from agentrl.store import Admission, Store, open_store
from agentrl.telemetry import JsonlSink, Telemetry, TimingsWindow
from agentrl.tools.base import Toolset
from agentrl.tools.mcp import McpToolset
from agentrl.tools.sources import parse_sources
from agentrl.types import Record, Split, Worker

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 10.0


def main(argv: Sequence[str]) -> int:
    config = with_model_folder(RunConfig.parse(argv, command="sample", description=__doc__ or ""))
    if not config.run.run_name:
        raise ConfigError("a sampler works for a run: give its name", setting="--run_name")
    asyncio.run(sample(config))
    return 0


async def sample(config: RunConfig) -> None:
    check_tools(config)
    load_scorer_module(config.tasks.scorer_module)
    await wait_for_run(config)
    store = open_store(config.store_url, run=config.run.run_name)
    await store.open()
    telemetry = Telemetry([JsonlSink(config.folder / "metrics.jsonl")])
    toolset = build_toolset(config)
    pool: EnginePool | None = None
    given = config.engine.engine_url
    worker = this_worker("sampler")
    heart = Heart(store, worker)
    try:
        heart.waits_for("its tool servers to start")
        await heart.start()
        feed = await push_own_tasks(config, store)
        await store.expire_dead_workers(socket.gethostname())
        await toolset.open()
        timeout = config.engine.wait_timeout
        heart.waits_for("an engine to answer" if given else "an engine to register itself", seconds=timeout)
        urls = given or await wait_for_service(store, timeout_seconds=timeout)
        pool = EnginePool(urls)
        if given:
            await wait_for_engine(pool, given, timeout_seconds=timeout)
        sampler = build_sampler(config, store, pool, toolset, telemetry, worker)
        await heart.stop()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, partial(sampler.stop, drain_seconds=DRAIN_SECONDS))
        loop.add_signal_handler(signal.SIGTERM, partial(sampler.stop, drain_seconds=0.0))
        logger.info("sampling with %d tools from %s", len(toolset.specs), ", ".join(urls))
        async with restarts_told(toolset, telemetry):
            await (feed.beside(sampler.run()) if feed else sampler.run())
        if sampler.budget.paused:
            raise Interrupted(way_on(sampler.budget.used_up))
        logger.info("sampled %d groups", sampler.num_groups)
    finally:
        await heart.stop()
        if pool is not None:
            await pool.close()
        await toolset.close()
        await store.leave(worker.id)
        await store.close()
        telemetry.close()


def build_toolset(config: RunConfig) -> McpToolset:
    return McpToolset(
        parse_sources(config.tools.mcp_manager_url),
        call_timeout_seconds=config.tools.tool_timeout,
        result_limit_chars=config.tools.tool_result_limit,
        log_dir=config.folder / "logs",
    )


def build_sampler(
    config: RunConfig, store: Store, engine: TokenEngine, toolset: Toolset, telemetry: Telemetry, worker: Worker
) -> MCPSampler:
    options, window = config.rollout, TimingsWindow(telemetry)
    runner = GroupRunner(
        store=store,
        engine=engine,
        renderer=load_renderer(config.model.model_name_or_path, tool_call_parser=options.tool_call_parser),
        toolset=toolset,
        rollout_options=options,
        algo_options=config.algo,
        pace=Pace(
            SamplingScheduler(
                target_concurrency=options.target_concurrency, max_episodes=options.max_concurrent_samples_per_process
            )
        ),
        servers=config.tools.mcp_server_name or None,
        default_prompt=config.tasks.default_prompt,
        seed=config.run.seed,
        on_turn=lambda turn: window.add("turns", turn.timings),
        on_record=lambda record: report(telemetry, window, record),
        on_group=lambda verdict: window.add("groups", verdict.timings),
    )
    engines = engine if isinstance(engine, EnginePool) else None
    return MCPSampler(
        runner,
        worker,
        admission=Admission(
            groups_per_step=config.groups_per_step,
            max_staleness=config.max_staleness,
            max_trained_count=config.pacing.max_trained_count,
            retrained_interval=config.pacing.retrained_interval,
        ),
        fleet=FleetWatch(store, worker, engines, registered=not config.engine.engine_url),
        budget=BudgetGuard(store, budget_of(config, toolset), tell=partial(tell_budget, telemetry)),
    )


def budget_of(config: RunConfig, toolset: Toolset) -> Budget:
    """The budget, whose tools are all there."""
    budget, known = config.read_budget(), [spec.name for spec in toolset.specs]
    for tool in budget.tools:
        if tool not in known:
            raise ConfigError(
                f"tool_calls/{tool}: there is no tool {tool!r}{nearest(tool, known)}; the servers of --mcp_manager_url "
                f"have {', '.join(known) or 'none'}",
                setting="--budget",
            )
    return budget


def tell_budget(telemetry: Telemetry, text: str) -> None:
    logger.warning("%s", text)
    telemetry.event(BUDGET_EVENT, text=text)


def report(telemetry: Telemetry, window: TimingsWindow, record: Record) -> None:
    """One event per finished record: what the live view and the dashboards count."""
    window.add("records", record.timings)
    telemetry.event(
        "record",
        id=record.id,
        split=record.task.split("/")[1],
        outcome=record.outcome,
        status=record.status,
        score=record.score,
        turns=record.num_turns,
        sampled_tokens=record.sampled_tokens,
        seconds=record.seconds,
        timings=asdict(record.timings),
    )


async def push_own_tasks(config: RunConfig, store: Store) -> Feed | None:
    """A sampler started alone with task files pushes them and ends the streams; under ``run`` it is given none.

    Returns what will push more, or the end, while it samples.
    """
    train = read_tasks(config.tasks.train_file, "--train_file") if config.tasks.train_file else []
    held_out = read_tasks(config.tasks.eval_file, "--eval_file") if config.tasks.eval_file else []
    check_scorers(train, config.tasks.train_file)
    check_scorers(held_out, config.tasks.eval_file)
    check_task_sampling(config, train)
    if not train and not held_out:
        return None
    await store.add_tasks(evaluation_tasks(config, held_out, 0))
    await store.end_stream(Split.EVAL)
    feed = Feed(store, config, train)
    return None if await feed.tick() else feed
