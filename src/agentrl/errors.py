"""The failure tree, and ``boundary``, which attributes whatever escapes a block to the boundary it crossed.

AgentRLError
├── ConfigError            the person repairs it: an option, a file, a setting; raised before anything starts
│   └── TaskFileError      a task file; ``problems`` name line, field and kind
├── ToolError              the model reads it: becomes a tool message
├── EpisodeError           the record holds it: this episode ends as ``error``
│   ├── RenderError
│   ├── EngineError
│   │   └── ContextTooLong
│   ├── GatewayError
│   └── ScoringError
├── StoreError             a write that cannot be made
│   └── LeaseLost          another owner has the group now
├── EngineOutage           no engine can be reached: the sampler ends and gives its groups back
├── WeightsError           an engine did not become the version it was given
├── WaitTimeout            a wait reached its deadline; says what was awaited and from whom
├── ProcessDied            a supervised process ended; names it, with the tail of its log
└── Interrupted            a person or the system asked the run to stop; what was done is saved
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AgentRLError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(AgentRLError):
    """A setting is wrong. ``setting`` is the option or file to change."""

    def __init__(self, message: str, *, setting: str = "") -> None:
        super().__init__(f"{setting}: {message}" if setting else message)
        self.setting = setting


class ToolError(AgentRLError):
    """The model can repair this, so it reads the text as the tool's answer.

    ``status`` is the ``ResultStatus`` that the record keeps: ``tool_error``, ``rejected`` (nothing was called),
    ``timeout`` or ``unknown_outcome``.
    """

    def __init__(self, message: str, *, status: str = "tool_error", truncated: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.truncated = truncated


class EpisodeError(AgentRLError):
    """One episode is broken by something outside the model; ``where`` names the boundary."""

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where

    def as_record(self) -> dict[str, str]:
        return {"where": self.where, "type": type(self).__name__, "message": str(self)}


class RenderError(EpisodeError):
    """Messages could not be turned into token ids."""


class EngineError(EpisodeError):
    """The engine gave no usable completion."""


class ContextTooLong(EngineError):
    """The engine refuses the prompt for its length; never retried."""


class GatewayError(EpisodeError):
    """A tool server or the way to it is broken."""


class ScoringError(EpisodeError):
    """The scorer itself failed: the record is unscored, never 0."""


class StoreError(AgentRLError):
    """The store refused or could not make a write."""


class LeaseLost(StoreError):
    """The claim's fencing token is no longer the newest: another owner runs the group."""


class EngineOutage(AgentRLError):
    """No engine answered for a while: no episode's doing, so no episode is judged by it."""


class WeightsError(AgentRLError):
    """An engine did not confirm the weights it was given; the message names it."""


class WaitTimeout(AgentRLError):
    """A wait reached its deadline."""


class ProcessDied(AgentRLError):
    """A supervised process ended on its own."""


class Interrupted(AgentRLError):
    """Asked to stop."""


@asynccontextmanager
async def boundary(error: type[EpisodeError], where: str) -> AsyncIterator[None]:
    """Turn any escape of the block into ``error`` at ``where``.

    Cancellation, ``ToolError`` and errors that already have a type of ours pass unchanged.
    """
    try:
        yield
    except EpisodeError as known:
        known.where = known.where or where
        raise
    except AgentRLError:
        raise
    except Exception as escaped:
        raise error(f"{type(escaped).__name__}: {escaped}", where=where) from escaped
