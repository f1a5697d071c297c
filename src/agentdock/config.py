"""The dock's configuration: our TOML, the reference's config.toml and mcpServers JSON, read into one frozen value."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentdock.calllog import CONTENT
from agentdock.entries import server_spec
from agentdock.fields import ConfigProblem, Findings, Problem, Table
from agentdock.lines import Field, json_lines, toml_lines
from agentdock.logs import Rotation
from agentdock.spec import BUILTIN, BUILTIN_CONFIGURED, ServerSpec, builtin_server

__all__ = ["ConfigProblem", "DockConfig", "GatewayOptions", "LogOptions", "Profile", "load_config", "parse_config"]

DEFAULT_PROFILE = "default"
TOML_PLACE = re.compile(r" \(at line (\d+), column \d+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """Where the gateway listens and what it lets in. ``legacy_errors``: errors travel in bodies with status 200.

    ``starts_at_once`` bounds how many processes of servers start at the same time.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 * 1024 * 1024
    call_timeout_seconds: float = 150.0
    max_call_timeout_seconds: float = 1800.0
    legacy_errors: bool = False
    starts_at_once: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How large log files may become, and whether calls are logged in "shape", in "full" or not ("off")."""

    rotation: Rotation = field(default_factory=Rotation)
    calls: str = "shape"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A named selection: all tools of ``servers`` (all servers if empty) whose id matches a pattern of ``tools``."""

    name: str
    servers: tuple[str, ...] = ()
    tools: tuple[str, ...] = ("*",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DockConfig:
    """What one dock runs and offers. ``aliases`` maps further tool names to ids; ``notices`` tell what does nothing."""

    servers: tuple[ServerSpec, ...]
    profiles: Mapping[str, Profile] = field(default_factory=lambda: {DEFAULT_PROFILE: Profile(name=DEFAULT_PROFILE)})
    gateway: GatewayOptions = field(default_factory=GatewayOptions)
    logs: LogOptions = field(default_factory=LogOptions)
    aliases: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    notices: tuple[str, ...] = ()


def load_config(path: Path | None) -> DockConfig:
    """Read ``path``; without one, a dock of the built-in servers. Raise ``ConfigProblem`` with all that is wrong."""
    if path is None:
        return DockConfig(servers=tuple(builtin_server(name) for name in BUILTIN if name not in BUILTIN_CONFIGURED))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigProblem(path, [Problem(line=None, field="", reason=f"cannot be read: {reason}")]) from None
    return parse_config(text, path)


def parse_config(text: str, path: Path) -> DockConfig:
    """The configuration in ``text``; ``path`` names it in problems and is where relative folders start."""
    entries, lines = _parse_text(text, path)
    findings = Findings(lines)
    table = Table(entries, findings)
    servers = _servers(table, path.parent)
    config = DockConfig(
        servers=servers,
        profiles=_profiles(table, servers),
        gateway=_gateway(table.table("gateway")),
        logs=_logs(table.table("logs")),
        aliases=table.named_texts("aliases"),
        path=path,
        notices=tuple(findings.notices),
    )
    table.close()
    if findings.problems:
        raise ConfigProblem(path, findings.problems)
    return config


def _parse_text(text: str, path: Path) -> tuple[dict[str, Any], dict[Field, int]]:
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text), toml_lines(text)
        entries = json.loads(text, object_pairs_hook=_unique_keys)
    except tomllib.TOMLDecodeError as error:
        place = TOML_PLACE.search(str(error))
        reason = f"not valid TOML: {TOML_PLACE.sub('', str(error))}"
        line = int(place[1]) if place else len(text.splitlines())
        raise ConfigProblem(path, [Problem(line=line, field="", reason=reason)]) from None
    except json.JSONDecodeError as error:
        reason = f"not valid JSON: {error.msg}"
        raise ConfigProblem(path, [Problem(line=error.lineno, field="", reason=reason)]) from None
    except ValueError as error:
        raise ConfigProblem(path, [Problem(line=None, field="", reason=f"not valid JSON: {error}")]) from None
    if not isinstance(entries, dict):
        raise ConfigProblem(path, [Problem(line=1, field="", reason="expected an object with the key mcpServers")])
    return entries, json_lines(text)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} appears twice in one object")
    return dict(pairs)


def _servers(table: Table, folder: Path) -> tuple[ServerSpec, ...]:
    """Servers of ``[server.NAME]`` and of ``mcpServers``, in the order of the file, without the disabled ones."""
    found: dict[str, ServerSpec | None] = {}
    for section in ("server", "mcpServers"):
        for name, entry in table.tables(section).items():
            if name in found:
                entry.refuse("", "another server has this name already; names must differ")
            found[name] = server_spec(name, entry, folder)
    if not found:
        table.refuse("", "no server is configured; expected tables [server.NAME] or mcpServers.NAME")
    return tuple(spec for spec in found.values() if spec is not None)


def _profiles(table: Table, servers: tuple[ServerSpec, ...]) -> dict[str, Profile]:
    names = {spec.name for spec in servers}
    profiles = {DEFAULT_PROFILE: Profile(name=DEFAULT_PROFILE)}
    for name, entry in table.tables("profile").items():
        profile = Profile(name=name, servers=entry.texts("servers"), tools=entry.texts("tools", ("*",)))
        for unknown in sorted(set(profile.servers) - names):
            entry.refuse("servers", f"names {unknown!r}, which is not configured; there are {', '.join(sorted(names))}")
        entry.close()
        profiles[name] = profile
    return profiles


def _gateway(table: Table) -> GatewayOptions:
    default = GatewayOptions()
    options = GatewayOptions(
        host=table.text("host", default.host),
        port=table.whole("port", default.port, maximum=65535),
        allowed_hosts=table.texts("allowed_hosts"),
        allowed_origins=table.texts("allowed_origins"),
        max_body_bytes=table.whole("max_body_bytes", default.max_body_bytes, minimum=1024),
        call_timeout_seconds=table.seconds("call_timeout_seconds", default.call_timeout_seconds),
        max_call_timeout_seconds=table.seconds("max_call_timeout_seconds", default.max_call_timeout_seconds),
        legacy_errors=table.flag("legacy_errors"),
        starts_at_once=table.whole("starts_at_once", default.starts_at_once, minimum=1),
    )
    table.close()
    if options.call_timeout_seconds > options.max_call_timeout_seconds:
        table.refuse("call_timeout_seconds", f"is above max_call_timeout_seconds {options.max_call_timeout_seconds:g}")
    return options


def _logs(table: Table) -> LogOptions:
    default = LogOptions()
    options = LogOptions(
        rotation=Rotation(
            max_bytes=table.whole("max_bytes", default.rotation.max_bytes, minimum=1024),
            keep=table.whole("keep", default.rotation.keep),
        ),
        calls=table.choice("calls", CONTENT, default.calls),
    )
    table.close()
    return options
