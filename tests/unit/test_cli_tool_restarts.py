"""Restarts of tool servers, as a run tells of them."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

from agentdock.supervisor import RestartPolicy, builtin_server
from agentrl.cli.tool_restarts import as_sentence, restarts_told
from agentrl.telemetry import Telemetry
from agentrl.tools import McpToolset


class Events:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def write(self, event: Any) -> None:
        self.events.append(event)

    def close(self) -> None: ...


def test_a_restart_is_told_once_with_the_reason_and_the_log(tmp_path: Path) -> None:
    sink = Events()

    async def scenario() -> None:
        policy = RestartPolicy(first_backoff_seconds=0.02)
        toolset = McpToolset([builtin_server("calculator")], log_dir=tmp_path, policy=policy)
        await toolset.open()
        try:
            async with restarts_told(toolset, Telemetry([sink])):
                pid = toolset.status[0].pid
                assert pid is not None
                os.kill(pid, signal.SIGKILL)
                while toolset.status[0].pid in (None, pid):
                    await asyncio.sleep(0.02)
        finally:
            await toolset.close()

    asyncio.run(scenario())
    (event,) = sink.events
    assert (event["kind"], event["server"], event["restarts"]) == ("tool_restart", "calculator", 1)
    assert as_sentence(event) == (
        "tool server 'calculator' was killed by signal 9; it was started again (restart 1), see logs/calculator.log"
    )


def test_of_a_long_reason_the_first_line_is_said() -> None:
    reason = "tool server 's' ended with exit code 1; its stderr ends with:\nno"
    event = {"server": "s", "restarts": 2, "reason": reason}
    assert as_sentence(event) == (
        "tool server 's' ended with exit code 1; it was started again (restart 2), see logs/s.log"
    )
