"""One entry of a configuration, as our TOML or other programs' mcpServers write it, read into a server spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from agentdock.arguments import MODES
from agentdock.fields import Table
from agentdock.spec import BUILTIN, BUILTIN_ALIASES, ServerSpec, Serving, builtin_server

KINDS = ("stdio", "builtin")
FOREIGN_KEYS = ("alwaysAllow", "autoApprove", "description", "encoding", "encoding_error_handler")


def server_spec(name: str, entry: Table, folder: Path) -> ServerSpec | None:
    """The spec of ``entry``, or None if it is disabled or wrong; mistakes go to the entry's findings.

    Relative ``cwd`` starts at ``folder``.
    """
    disabled = entry.flag("disabled")
    kind = entry.choice("kind", KINDS, entry.choice("type", KINDS, "builtin" if "builtin" in entry else "stdio"))
    spec = _builtin(name, entry) if kind == "builtin" else _stdio(name, entry, folder)
    entry.without_effect(FOREIGN_KEYS, "has no effect here")
    entry.close()
    return None if disabled else spec


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
    return Serving(
        aliases=(*aliases, *entry.texts("aliases")),
        arguments=entry.choice("arguments", MODES, "coerce"),
    )
