"""Opens the wire to a server, whichever way its entry says, and tells in words why that failed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentdock.spec import ServerSpec
from agentdock.stdio import stdio_wire
from agentdock.wire import Wire


@asynccontextmanager
async def open_wire(spec: ServerSpec, errors: Callable[[bytes], None]) -> AsyncIterator[Wire]:
    """The wire of a resolved ``spec``; ``errors`` gets what a process writes to its stderr."""
    if spec.remote is None:
        async with stdio_wire(spec, errors) as wire:
            yield wire
        return
    from agentdock.remote import remote_wire

    async with remote_wire(spec) as wire:
        yield wire


def why_unreachable(error: BaseException) -> str:
    """What an error, or the first within a group of errors, says of a server that was to be reached."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"could not be reached: {error or type(error).__name__}"
