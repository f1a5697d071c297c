"""``ScriptedToolset``: tools from a table of texts and functions, under the same contract as real servers."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentdock.supervisor import ToolInfo
from agentrl.errors import ToolError
from agentrl.tools.base import ToolSession
from agentrl.tools.catalogue import Catalogue, Entry
from agentrl.tools.results import tool_error, tool_result
from agentrl.types import ResultStatus, ToolCall, ToolResult, ToolSpec

Reply = str | Callable[[dict[str, Any]], str | Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTool:
    """``reply`` is the text, or a function of the arguments that returns it or raises ``ToolError``.

    ``fail`` is the text of an error instead of a reply; ``hang`` never answers, so that the deadline ends the call.
    """

    reply: Reply = ""
    description: str = ""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    server: str = "scripted"
    idempotent: bool = True
    latency_seconds: float = 0.0
    fail: str = ""
    hang: bool = False


class ScriptedToolset:
    """Tools by name; a bare text or function stands for a ``ScriptedTool``. ``calls`` keeps what ran."""

    def __init__(
        self,
        table: Mapping[str, ScriptedTool | Reply],
        *,
        call_timeout_seconds: float = 60.0,
        result_limit_chars: int = 20_000,
    ) -> None:
        self.specs: tuple[ToolSpec, ...] = ()
        self.calls: list[ToolCall] = []
        self.failed = asyncio.Event()
        self.failure = ""
        self._table = {
            name: tool if isinstance(tool, ScriptedTool) else ScriptedTool(reply=tool) for name, tool in table.items()
        }
        self._catalogue = Catalogue((), ())
        self._call_timeout_seconds = call_timeout_seconds
        self._result_limit_chars = result_limit_chars

    async def open(self) -> None:
        listing: dict[str, list[ToolInfo]] = {}
        for name, tool in self._table.items():
            info = ToolInfo(
                name=name, description=tool.description, input_schema=tool.parameters, idempotent=tool.idempotent
            )
            listing.setdefault(tool.server, []).append(info)
        self._catalogue = Catalogue.of(listing)
        self.specs = self._catalogue.specs

    def session(
        self, record: str, *, allow: Sequence[str] | None = None, servers: Sequence[str] | None = None
    ) -> ToolSession:
        return _ScriptedSession(self, self._catalogue.select(allow, servers))

    async def close(self) -> None:
        """Nothing is held."""

    async def run(self, entry: Entry, call: ToolCall) -> ToolResult:
        """Play the script of ``entry`` for ``call``."""
        began = time.perf_counter()
        self.calls.append(call)
        try:
            async with asyncio.timeout(self._call_timeout_seconds):
                text = await self._play(self._table[entry.tool], call.arguments or {})
        except TimeoutError:
            raise ToolError(
                f"{entry.tool!r} on tool server {entry.server!r} gave no answer within "
                f"{self._call_timeout_seconds:g} s and was cancelled",
                status=ResultStatus.TIMEOUT,
            ) from None
        return tool_result(call, text, began=began, limit_chars=self._result_limit_chars)

    async def _play(self, tool: ScriptedTool, arguments: dict[str, Any]) -> str:
        await asyncio.sleep(tool.latency_seconds)
        if tool.hang:
            await asyncio.Event().wait()
        if tool.fail:
            raise tool_error(tool.fail, limit_chars=self._result_limit_chars)
        reply = tool.reply(arguments) if callable(tool.reply) else tool.reply
        return await reply if inspect.isawaitable(reply) else reply


class _ScriptedSession:
    def __init__(self, toolset: ScriptedToolset, catalogue: Catalogue) -> None:
        self.specs = catalogue.specs
        self._toolset = toolset
        self._catalogue = catalogue

    async def call(self, call: ToolCall) -> ToolResult:
        return await self._toolset.run(self._catalogue.find(call.name), call)

    async def close(self) -> None:
        """Nothing is held."""
