"""``agentrl node``: what a node needs beside trainers that were started elsewhere (torchrun, accelerate launch).

``agentrl train`` with ``enable_sampling`` starts it on local rank 0: engine and sampler of this node, the tasks of the
run and its evaluation. It serves the trainer until that says that it has trained its last step.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console

from agentrl.cli.exits import INTERRUPTED
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_before_start
from agentrl.cli.run import STOP_GRACE_SECONDS, TRAINING_ENDED, WATCH_SECONDS, play, prepared
from agentrl.cli.start_screen import print_start
from agentrl.cli.supervise import Supervisor
from agentrl.config import RunConfig
from agentrl.errors import Interrupted, ProcessDied
from agentrl.store import open_store


def main(argv: Sequence[str]) -> int:
    config = with_model_folder(RunConfig.parse(argv, command="node", description=__doc__ or ""))
    train, held_out = check_before_start(config)
    asyncio.run(play(config, Console(), train, held_out, with_trainer=False))
    return 0


@contextmanager
def sampling_node(config: RunConfig, stop: threading.Event) -> Iterator[None]:
    """A node beside this trainer. Its death sets ``stop`` and is raised as ``ProcessDied``, unless it ended because the
    budget pauses the run; when the trainer is done the last evaluation is waited for."""
    with prepared(config) as (train, held_out):
        print_start(Console(), config, train, held_out)
        yield from supervised_node(config, stop)


def supervised_node(config: RunConfig, stop: threading.Event) -> Iterator[None]:
    supervisor = Supervisor(config.folder / "logs", env={})
    arguments = ["node", "--config", str(config.folder / "config.yaml")]
    supervisor.start("node", arguments, num_threads=1, expected_to_end=True, shows=True)
    watcher = threading.Thread(target=watch, args=(supervisor, stop), name="node watch", daemon=True)
    watcher.start()
    try:
        yield
        asyncio.run(tell_training_ended(config))
        supervisor.children["node"].process.wait()
        supervisor.check()
    except Interrupted:
        if supervisor.children["node"].process.poll() == INTERRUPTED:
            raise  # the node paused the run and said why
        supervisor.check()
        supervisor.stop("node", grace_seconds=2 * STOP_GRACE_SECONDS, ask=signal.SIGINT)
        raise
    finally:
        supervisor.stop("node", grace_seconds=2 * STOP_GRACE_SECONDS)


def watch(supervisor: Supervisor, stop: threading.Event) -> None:
    """Stop the trainer soon after the node died."""
    while not stop.wait(WATCH_SECONDS):
        try:
            supervisor.check()
        except ProcessDied:
            stop.set()


async def tell_training_ended(config: RunConfig) -> None:
    store = open_store(config.store_url, run=config.run.run_name)
    await store.open()
    try:
        await store.set_state(TRAINING_ENDED, True)
    finally:
        await store.close()
