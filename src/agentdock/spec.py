"""What a tool server needs to start: command, arguments and exactly the environment it may see."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
INHERITED = ("PATH", "SYSTEMROOT", "COMSPEC", "PATHEXT") if sys.platform == "win32" else ("PATH",)
BUILTIN = ("calculator", "fetch_url", "lookup", "python", "read_file", "search-fusion")
# These do not start without arguments, so that a dock without a configuration leaves them out.
BUILTIN_CONFIGURED = frozenset({"read_file", "search-fusion"})
BUILTIN_ALIASES: dict[str, tuple[str, ...]] = {
    "search-fusion": ("web", "search_web"),
    "fetch_url": ("web", "search_web", "search-fusion"),
    "read_file": ("file",),
    "python": ("code-executor",),
}


class MissingVariable(Exception):
    """An ``${ENV}`` reference has no value; the message names server, place and variable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """How the dock offers a server.

    ``aliases`` are further names that its tools are called under. ``arguments``: "coerce" puts slips right and checks,
    "check" only checks, "pass" sends what was given. ``share``: who has a copy of the server in common: "all", the
    callers of a "profile" or of a "session". A ``lazy`` server starts with the first call. ``prewarm`` copies wait for
    sessions to come. A copy that nobody called for ``idle_stop_seconds`` ends. After ``max_restarts`` without an
    answered call in between calls are refused, and a start is tried at most every ``probe_seconds``. So many calls of
    the server (``max_concurrency``) and of each named tool (``tool_concurrency``) are under way at once; 0: no limit.
    """

    aliases: tuple[str, ...] = ()
    arguments: str = "coerce"
    share: str = "all"
    lazy: bool = False
    prewarm: int = 0
    idle_stop_seconds: float | None = None
    max_restarts: int = 3
    probe_seconds: float = 30.0
    max_concurrency: int = 0
    tool_concurrency: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """Where a server listens: streamable HTTP at ``url``, or the older SSE. ``headers`` go with every request."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    sse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """An MCP server: a process with ``command`` that speaks over stdio, or a ``remote`` one.

    ``env`` is all that a process sees besides ``PATH`` (and what Windows needs to start a process). ``${NAME}`` and
    ``${NAME:-default}`` in command, args, env, cwd, url and headers are resolved when the server starts.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    remote: Remote | None = None
    start_timeout_seconds: float = 30.0
    idempotent_tools: frozenset[str] = frozenset()
    serving: Serving = field(default_factory=Serving)

    @property
    def kind(self) -> str:
        if self.remote is None:
            return "stdio"
        return "sse" if self.remote.sse else "http"

    def missing(self, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The environment variables that the server needs and that are not set."""
        values = os.environ if environ is None else environ
        texts = [self.command, *self.args, *self.env.values(), self.cwd or ""]
        if self.remote is not None:
            texts += [self.remote.url, *self.remote.headers.values()]
        needed = (match.groups() for text in texts for match in REFERENCE.finditer(text))
        return tuple(dict.fromkeys(name for name, default in needed if name not in values and default is None))

    def resolved(self, environ: Mapping[str, str] | None = None) -> ServerSpec:
        """The spec with every reference replaced; raise ``MissingVariable`` naming all that have no value."""
        values = os.environ if environ is None else environ
        missing: list[str] = []

        def fill(place: str, text: str) -> str:
            def value(match: re.Match[str]) -> str:
                name, default = match.groups()
                if name not in values and default is None:
                    missing.append(f"{name} (in {place})")
                return values.get(name, default or "")

            return REFERENCE.sub(value, text)

        spec = replace(
            self,
            command=fill("command", self.command),
            args=tuple(fill(f"args[{i}]", arg) for i, arg in enumerate(self.args)),
            env={key: fill(f"env.{key}", text) for key, text in self.env.items()},
            cwd=None if self.cwd is None else fill("cwd", self.cwd),
            remote=None if self.remote is None else _filled(self.remote, fill),
        )
        if missing:
            raise MissingVariable(
                f"tool server {self.name!r} needs environment variables that are not set: {', '.join(missing)}"
            )
        return spec

    def environment(self) -> dict[str, str]:
        """The whole environment of the process, for a resolved spec."""
        return {name: os.environ[name] for name in INHERITED if name in os.environ} | dict(self.env)


def _filled(remote: Remote, fill: Callable[[str, str], str]) -> Remote:
    headers = {key: fill(f"headers.{key}", text) for key, text in remote.headers.items()}
    return replace(remote, url=fill("url", remote.url), headers=headers)


def builtin_server(name: str, *args: str) -> ServerSpec:
    """The spec of a server that ships with AgentDock, one of ``BUILTIN``."""
    if name not in BUILTIN:
        raise ValueError(f"no built-in tool server {name!r}; there are {', '.join(BUILTIN)}")
    packages = str(Path(__file__).resolve().parent.parent)
    installed = packages in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    return ServerSpec(
        name=name,
        command=sys.executable,
        args=("-m", f"agentdock.servers.{name.replace('-', '_')}", *args),
        env={} if installed else {"PYTHONPATH": packages},
        serving=Serving(aliases=BUILTIN_ALIASES.get(name, ())),
    )
