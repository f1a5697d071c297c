"""One of two ranks, started without a launcher: rank 1 fails in the way named, rank 0 waits for it."""

import os
import signal
import sys
import threading
import time

from agentrl.cli.exits import tell
from agentrl.errors import AgentRLError, ConfigError
from agentrl.parallel import Launch
from agentrl.parallel.join import join_ranks

FOR_EVER = 60.0


def fail(how: str) -> None:
    if how == "setting":
        raise ConfigError("is wrong on this rank only", setting="--some_option")
    if how == "surprise":
        raise ValueError("nobody expected this")
    os.kill(os.getpid(), signal.SIGKILL)


def main(where: str, how: str) -> None:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    launch = Launch.of(os.environ)
    with join_ranks(launch, device="cpu", stop=stop, on_failure=tell) as ranks:
        ranks.gather("both are there")
        print("JOINED", flush=True)
        if how == "stop":
            ranks.on_first(lambda: stop.wait(FOR_EVER))
            print(f"STOPPED {ranks.gather(stop.is_set())}", flush=True)
            return
        if launch.rank == 1:
            fail(how)
        if where == "collective":
            ranks.gather("rank 1 never comes")
        elif where == "stubborn":
            time.sleep(FOR_EVER)
        else:
            ranks.on_first(lambda: stop.wait(FOR_EVER))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except AgentRLError as error:
        sys.exit(tell(error))
