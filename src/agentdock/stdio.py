"""A child process as an MCP transport: JSON lines over its pipes, its end noticed at once, its group reaped."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

from agentdock.reaping import HAS_GROUPS, guardian, signal_group
from agentdock.spec import ServerSpec
from agentdock.wire import Wire

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.shared.message import SessionMessage

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
STDERR = 2
DRAIN_SECONDS = 0.2
STDIN_GRACE_SECONDS = 1.0
TERM_GRACE_SECONDS = 1.0


class _Child(asyncio.SubprocessProtocol):
    """Splits stdout into messages and turns every way of ending into one future."""

    def __init__(self, inbox: MemoryObjectSendStream[Any], errors: Callable[[bytes], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._inbox = inbox
        self._errors = errors
        self._parts: list[bytes] = []
        self._size = 0
        self.transport: asyncio.SubprocessTransport | None = None
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self.exited = asyncio.Event()
        self.errors_ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.SubprocessTransport, transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == STDERR:
            self._errors(data)
            return
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._message(b"".join([*self._parts, line]))
            self._parts, self._size = [], 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if self._size > MAX_MESSAGE_BYTES:
            self._end(f"sent a message longer than {MAX_MESSAGE_BYTES} bytes")

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Our end of stdin breaks, or stdout ends: wait a moment for the exit code, which says more."""
        if fd == STDERR:
            self.errors_ended.set()
            return
        self._loop.call_later(DRAIN_SECONDS, self._end, "closed its pipe")

    def process_exited(self) -> None:
        assert self.transport is not None
        code = self.transport.get_returncode()
        reason = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
        signal_group(self.transport.get_pid(), force=True)
        guardian.remove(self.transport.get_pid())
        self.exited.set()
        pending = self.transport.get_pipe_transport(1)
        if pending is None or pending.is_closing():
            self._end(reason)
        else:
            self._loop.call_later(DRAIN_SECONDS, self._end, reason)

    def kill(self, reason: str) -> None:
        assert self.transport is not None
        self._end(reason)
        signal_group(self.transport.get_pid(), force=True)

    def _message(self, line: bytes) -> None:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        if self.ended.done() or not line.strip():
            return
        try:
            message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError as error:
            self._inbox.send_nowait(error)
        else:
            self._inbox.send_nowait(message)

    def _end(self, reason: str) -> None:
        if not self.ended.done():
            self.ended.set_result(reason)
            self._inbox.close()


@asynccontextmanager
async def stdio_wire(spec: ServerSpec, errors: Callable[[bytes], None]) -> AsyncIterator[Wire]:
    """Start the server of a resolved ``spec``; leave with its whole group gone. ``errors`` gets its stderr in parts.

    Raises ``OSError`` if the process cannot be started.
    """
    import anyio

    inbox, incoming = anyio.create_memory_object_stream[Any](float("inf"))
    outgoing, outbox = anyio.create_memory_object_stream[Any](float("inf"))
    loop = asyncio.get_running_loop()
    try:
        transport, child = await loop.subprocess_exec(
            lambda: _Child(inbox, errors),
            spec.command,
            *spec.args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=spec.cwd,
            env=spec.environment(),
            start_new_session=HAS_GROUPS,
        )
    except BaseException:
        for stream in (inbox, incoming, outgoing, outbox):
            stream.close()
        raise
    pid = transport.get_pid()
    if not child.exited.is_set():
        guardian.add(pid)
    stdin = cast(asyncio.WriteTransport, transport.get_pipe_transport(0))
    writer = asyncio.create_task(_write(outbox, stdin), name=f"{spec.name}: stdin")
    graceful = False
    try:
        yield Wire(incoming=incoming, outgoing=outgoing, ended=child.ended, kill=child.kill, pid=pid)
        graceful = True
    finally:
        try:
            if graceful:
                await _stop(child, stdin, pid)
        finally:
            if not child.exited.is_set():
                signal_group(pid, force=True)
                guardian.remove(pid)
            writer.cancel()
            if child.exited.is_set():
                await _set_within(child.errors_ended, DRAIN_SECONDS)
            transport.close()
            for stream in (inbox, incoming, outgoing, outbox):
                stream.close()


async def _write(outbox: MemoryObjectReceiveStream[SessionMessage], stdin: asyncio.WriteTransport) -> None:
    async for item in outbox:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        stdin.write(text.encode() + b"\n")


async def _stop(child: _Child, stdin: asyncio.WriteTransport, pid: int) -> None:
    """Close stdin, then SIGTERM, then SIGKILL, each with its grace."""
    stdin.close()
    if await _set_within(child.exited, STDIN_GRACE_SECONDS):
        return
    signal_group(pid, force=False)
    if await _set_within(child.exited, TERM_GRACE_SECONDS):
        return
    signal_group(pid, force=True)
    await _set_within(child.exited, TERM_GRACE_SECONDS)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True
