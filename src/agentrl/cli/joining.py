"""What a sampler that is started alone joins: a run that somebody began, and engines that answer.

Both may come up after it, so it waits for them within ``wait_timeout`` and then says what is not there. It creates
nothing meanwhile: a name or a path that was mistyped leaves no trace.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from agentrl.config import RunConfig
from agentrl.engine.pool import EnginePool
from agentrl.errors import EngineOutage, WaitTimeout
from agentrl.store import store_exists, stored_runs

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2
LISTED_RUNS = 10


async def wait_for_run(config: RunConfig) -> None:
    """Raise ``WaitTimeout`` when nobody has begun the run in time; one that brings tasks begins it itself."""
    if config.tasks.train_file or config.tasks.eval_file:
        return
    deadline, told = time.monotonic() + config.engine.wait_timeout, False
    while missing := what_is_missing(config):
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"{missing} (waited {config.engine.wait_timeout:g} s, --wait_timeout). Start its trainer, or give this "
                "sampler the tasks (--train_file)"
            )
        if not told:
            logger.warning("%s: waiting for somebody to begin it", missing)
            told = True
        await asyncio.sleep(POLL_SECONDS)


def what_is_missing(config: RunConfig) -> str:
    """Store or run, with the settings that name them; an empty text when both are there."""
    url, name = config.store_url, config.run.run_name
    if not store_exists(url):
        folder = Path(config.run.output_dir).resolve()
        where = "" if config.run.db_connection_string else f"; runs are looked for below {folder} (--output_dir)"
        return f"there is no store {url} (--db_connection_string) of run {name!r}{where}"
    runs = stored_runs(url)
    if name in runs:
        return ""
    more = f" and {len(runs) - LISTED_RUNS} more" if len(runs) > LISTED_RUNS else ""
    known = f"it holds {', '.join(runs[:LISTED_RUNS])}{more}" if runs else "it holds none yet"
    return f"there is no run {name!r} (--run_name) in {url}: {known}"


async def wait_for_engine(pool: EnginePool, urls: Sequence[str], *, timeout_seconds: float) -> None:
    """Until one of the engines answers, whether it has weights yet or not; ``EngineOutage`` when none did in time."""
    deadline, told = time.monotonic() + timeout_seconds, False
    while silence := await pool.silence():
        if time.monotonic() > deadline:
            raise EngineOutage(
                f"no engine answers at {', '.join(urls)} (--engine_url; waited {timeout_seconds:g} s, --wait_timeout): "
                f"{silence}"
            )
        if not told:
            logger.warning("no engine answers yet, waiting for one: %s", silence)
            told = True
        await asyncio.sleep(POLL_SECONDS)
