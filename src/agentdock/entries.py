"""One entry of a configuration, as our TOML or other programs' mcpServers write it, read into a server spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from agentdock.arguments import MODES
from agentdock.fields import Table
from agentdock.spec import BUILTIN, BUILTIN_ALIASES, REFERENCE, Remote, ServerSpec, Serving, builtin_server

KINDS = ("stdio", "http", "sse", "builtin")
# Ways in which other programs write "http".
TYPES = (*KINDS, "streamable-http", "streamable_http", "streamableHttp")
SHARES = ("all", "profile", "session")
FOREIGN_KEYS = ("alwaysAllow", "autoApprove", "description", "encoding", "encoding_error_handler")


def server_spec(name: str, entry: Table, folder: Path) -> ServerSpec | None:
    """The spec of ``entry``, or None if it is disabled or wrong; mistakes go to the entry's findings.

    Relative ``cwd`` starts at ``folder``.
    """
    disabled = entry.flag("disabled")
    kind = entry.choice("kind", KINDS, entry.choice("type", TYPES, _kind(entry)))
    if kind == "builtin":
        spec = _builtin(name, entry)
    elif kind == "stdio":
        spec = _stdio(name, entry, folder)
    else:
        spec = _remote(name, entry, sse=kind == "sse")
    entry.without_effect(FOREIGN_KEYS, "has no effect here")
    entry.close()
    return None if disabled else spec


def _kind(entry: Table) -> str:
    """What an entry that does not say so is; an address that ends in /sse is of the older kind."""
    if "url" in entry:
        return "sse" if urlsplit(str(entry.entries["url"])).path.rstrip("/").endswith("/sse") else "http"
    return "builtin" if "builtin" in entry else "stdio"


def _stdio(name: str, entry: Table, folder: Path) -> ServerSpec | None:
    command, cwd = entry.text("command"), entry.text("cwd")
    if "command" not in entry:
        entry.refuse("command", "is missing; expected the program that serves MCP on its stdin and stdout")
    return ServerSpec(
        name=name,
        command=command,
        args=entry.texts("args"),
        env=entry.named_texts("env"),
        cwd=str(folder / cwd) if cwd else None,
        start_timeout_seconds=entry.seconds("start_timeout_seconds", 30.0),
        idempotent_tools=frozenset(entry.texts("idempotent_tools")),
        serving=_serving(entry, ()),
    )


def _remote(name: str, entry: Table, *, sse: bool) -> ServerSpec | None:
    url = entry.text("url")
    if "url" not in entry:
        entry.refuse("url", "is missing; expected the address where the server speaks MCP")
    elif url and not url.startswith(("http://", "https://")) and not REFERENCE.match(url):
        entry.refuse("url", f"is {url!r}; expected an address that begins with http:// or https://")
    return ServerSpec(
        name=name,
        remote=Remote(url=url, headers=entry.named_texts("headers"), sse=sse),
        start_timeout_seconds=entry.seconds("start_timeout_seconds", 30.0),
        idempotent_tools=frozenset(entry.texts("idempotent_tools")),
        serving=_serving(entry, ()),
    )


def _builtin(name: str, entry: Table) -> ServerSpec | None:
    builtin = entry.choice("builtin", BUILTIN, name if name in BUILTIN else "")
    args, env = entry.texts("args"), entry.named_texts("env")
    start_timeout_seconds = entry.seconds("start_timeout_seconds", 30.0)
    serving = _serving(entry, BUILTIN_ALIASES.get(builtin, ()))
    if not builtin:
        if "builtin" not in entry:
            entry.refuse("builtin", f"is missing and {name!r} is no built-in server; there are {', '.join(BUILTIN)}")
        return None
    spec = builtin_server(builtin, *args)
    return replace(
        spec, name=name, env={**spec.env, **env}, start_timeout_seconds=start_timeout_seconds, serving=serving
    )


def _serving(entry: Table, aliases: tuple[str, ...]) -> Serving:
    serving = Serving(
        aliases=(*aliases, *entry.texts("aliases")),
        arguments=entry.choice("arguments", MODES, "coerce"),
        share=entry.choice("share", SHARES, "all"),
        lazy=entry.flag("lazy"),
        prewarm=entry.whole("prewarm", 0, maximum=64),
        idle_stop_seconds=entry.seconds("idle_stop_seconds", 0.0) or None,
        max_restarts=entry.whole("max_restarts", 3),
        probe_seconds=entry.seconds("probe_seconds", 30.0),
        max_concurrency=entry.whole("max_concurrency", 0),
        tool_concurrency=_limits(entry.table("tool_concurrency")),
    )
    if serving.prewarm and serving.share != "session":
        entry.refuse("prewarm", 'keeps copies for sessions to come, which works with share = "session" only')
    if serving.prewarm and serving.lazy:
        entry.refuse("prewarm", "keeps copies running and lazy runs none before the first call; set one of them")
    return serving


def _limits(table: Table) -> dict[str, int]:
    return {tool: table.whole(tool, 1, minimum=1) for tool in table.entries}
