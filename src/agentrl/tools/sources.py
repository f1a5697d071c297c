"""``--mcp_manager_url``: commands, built-in servers and mcpServers files, read into server specs."""

from __future__ import annotations

import json
import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentdock.supervisor import BUILTIN, ServerSpec, builtin_server
from agentrl.errors import ConfigError

SETTING = "--mcp_manager_url"
KEYS = ("type", "command", "args", "env", "cwd", "start_timeout_seconds", "idempotent_tools")


def parse_sources(mcp_manager_url: str | Sequence[str]) -> list[ServerSpec]:
    """Specs of all sources, each ``stdio:COMMAND``, ``builtin:NAME [ARGS]`` or an mcpServers JSON/TOML file.

    Names from commands are made distinct by a number; two servers named alike in files raise ``ConfigError``.
    """
    urls = [mcp_manager_url] if isinstance(mcp_manager_url, str) else list(mcp_manager_url)
    specs: list[ServerSpec] = []
    for url in urls:
        found = _parse_source(url)
        if url.startswith(("stdio:", "builtin:")):
            found = [replace(spec, name=_free_name(spec.name, specs)) for spec in found]
        twice = {spec.name for spec in found} & {spec.name for spec in specs}
        if twice:
            raise ConfigError(f"{url} names a server {sorted(twice)[0]!r} that another source has too", setting=SETTING)
        specs += found
    return specs


def _parse_source(url: str) -> list[ServerSpec]:
    scheme, colon, rest = url.partition(":")
    if scheme in ("http", "https") and colon:
        raise ConfigError(
            f"HTTP tool sources arrive with AgentDock's gateway; use stdio: or a mcpServers file instead of {url}",
            setting=SETTING,
        )
    if scheme == "stdio" and colon:
        return [_command_spec(url, rest)]
    if scheme == "builtin" and colon:
        return [_builtin_spec(url, rest)]
    return _file_specs(Path(url))


def _words(url: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"{url!r} cannot be split into words: {error}", setting=SETTING) from None
    if not words:
        raise ConfigError(f"{url!r} names no command; expected stdio:COMMAND or builtin:NAME", setting=SETTING)
    return words


def _command_spec(url: str, text: str) -> ServerSpec:
    command, *args = _words(url, text)
    name = Path(command).stem
    if args[:1] == ["-m"] and len(args) > 1:
        name = args[1].rpartition(".")[2]
    elif args and args[0].endswith(".py"):
        name = Path(args[0]).stem
    return ServerSpec(name=name, command=command, args=tuple(args))


def _builtin_spec(url: str, text: str) -> ServerSpec:
    name, *args = _words(url, text)
    if name not in BUILTIN:
        raise ConfigError(f"{url!r}: no built-in server {name!r}; there are {', '.join(BUILTIN)}", setting=SETTING)
    return builtin_server(name, *args)


def _free_name(name: str, specs: Sequence[ServerSpec]) -> str:
    taken = {spec.name for spec in specs}
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _file_specs(path: Path) -> list[ServerSpec]:
    content = _load(path)
    servers = content.get("mcpServers")
    if not isinstance(servers, dict) or not servers:
        raise ConfigError(f"{path}: key mcpServers is missing or empty; expected servers by name", setting=SETTING)
    return [_server_spec(path, name, entry) for name, entry in servers.items()]


def _load(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{str(path)!r} is neither stdio:COMMAND, builtin:NAME nor a file that exists", setting=SETTING
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", setting=SETTING) from None
    try:
        content = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text, object_pairs_hook=_unique_keys)
    except ValueError as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise ConfigError(f"{path}: not valid {kind}: {error}", setting=SETTING) from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected an object with the key mcpServers", setting=SETTING)
    return content


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"key {twice[0]!r} appears twice in one object")
    return dict(pairs)


def _server_spec(path: Path, name: str, entry: Any) -> ServerSpec:
    where = f"{path}: mcpServers.{name}"
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is {_kind(entry)}; expected an object with command", setting=SETTING)
    if "url" in entry:
        raise ConfigError(
            f"{where}.url: HTTP tool sources arrive with AgentDock's gateway; give command and args", setting=SETTING
        )
    for key in entry:
        if key not in KEYS:
            raise ConfigError(f"{where}.{key} is not known; known keys are {', '.join(KEYS)}", setting=SETTING)
    if entry.get("type", "stdio") != "stdio":
        raise ConfigError(f"{where}.type is {entry['type']!r}; only 'stdio' can be started here", setting=SETTING)
    cwd = entry.get("cwd")
    spec = ServerSpec(
        name=name,
        command=_text(entry.get("command"), f"{where}.command"),
        args=_texts(entry.get("args", []), f"{where}.args"),
        env=_environment(entry.get("env", {}), f"{where}.env"),
        cwd=None if cwd is None else str(path.parent / _text(cwd, f"{where}.cwd")),
        idempotent_tools=frozenset(_texts(entry.get("idempotent_tools", []), f"{where}.idempotent_tools")),
    )
    if "start_timeout_seconds" in entry:
        seconds = entry["start_timeout_seconds"]
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0:
            raise ConfigError(
                f"{where}.start_timeout_seconds is {seconds!r}; expected a number above 0", setting=SETTING
            )
        spec = replace(spec, start_timeout_seconds=float(seconds))
    return spec


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} is {_kind(value)}; expected a text that is not empty", setting=SETTING)
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ConfigError(f"{where} is {_kind(value)}; expected a list of texts", setting=SETTING)
    return tuple(value)


def _environment(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {_kind(value)}; expected names with texts", setting=SETTING)
    for name, text in value.items():
        if not isinstance(text, str):
            raise ConfigError(f"{where}.{name} is {_kind(text)}; expected a text", setting=SETTING)
    return dict(value)


def _kind(value: Any) -> str:
    return "missing" if value is None else f"{type(value).__name__} {value!r}"
