"""A YAML file of options as flags: every value stays the text that was written, so it is converted once, by the flags.

``1e-4`` is a number, ``eval_strategy: no`` and ``run_name: 0123`` are what they look like; only JSON values are read as
YAML's own types.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentrl.config.names import nearest
from agentrl.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What an option takes: ``plain`` is its type or ``Any``, ``optional`` says that none is a value too."""

    plain: Any
    optional: bool


def flags_of_file(path: Path, kinds: Mapping[str, Kind]) -> list[str]:
    """Raise ``ConfigError`` with file, line and key for what no option takes."""
    flags: list[str] = []
    first_line: dict[str, int] = {}
    loader = yaml.SafeLoader(read(path))
    try:
        for key, node in entries(loader, path):
            line = key.start_mark.line + 1
            where = f"--config {path}, line {line}"
            name = key.value if isinstance(key, yaml.ScalarNode) else str(loader.construct_object(key, deep=True))
            if name not in kinds:
                raise ConfigError(f"unknown key {name!r}{nearest(name, kinds)}", setting=where)
            if name in first_line:
                raise ConfigError(f"{name} is there already, in line {first_line[name]}", setting=where)
            first_line[name] = line
            flags += as_flags(name, node, loader.construct_object(node, deep=True), kinds[name], where)
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}", setting=f"--config {path}") from error
    finally:
        loader.dispose()
    return flags


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", setting=f"--config {path}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"is not UTF-8: {error}", setting=f"--config {path}") from error


def entries(loader: yaml.SafeLoader, path: Path) -> list[tuple[yaml.Node, yaml.Node]]:
    root = loader.get_single_node()
    if isinstance(root, yaml.MappingNode):
        return root.value
    raise ConfigError(f"expects NAME: VALUE lines, found {seen(root)}", setting=f"--config {path}")


def as_flags(name: str, node: yaml.Node, value: Any, kind: Kind, where: str) -> list[str]:
    if kind.plain is Any and isinstance(value, list):
        return [f"--{name}={','.join(map(str, value))}"]
    if kind.plain in (dict, Any) and isinstance(value, dict):
        return [f"--{name}={as_json(name, value, where)}"]
    if kind.plain is list and isinstance(node, yaml.SequenceNode):
        if not all(isinstance(item, yaml.ScalarNode) for item in node.value):
            raise ConfigError(f"{name} expects a list of texts", setting=where)
        return [f"--{name}", *(item.value for item in node.value)]
    if not isinstance(node, yaml.ScalarNode):
        raise ConfigError(f"{name} expects {expected(kind)}, found {seen(node)}", setting=where)
    if value is None and not kind.optional:
        raise ConfigError(f"{name} has no value: give one, or leave the key out for its default", setting=where)
    if value is None:
        return [f"--{name}=none"]
    return [f"--{name}={value if isinstance(value, float) else node.value}"]


def as_json(name: str, value: dict[Any, Any], where: str) -> str:
    try:
        return json.dumps(value)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}", setting=where) from error


def seen(node: yaml.Node | None) -> str:
    names: dict[type, str] = {type(None): "nothing", yaml.MappingNode: "NAME: VALUE pairs", yaml.SequenceNode: "a list"}
    return names.get(type(node), "one value")


def expected(kind: Kind) -> str:
    return {dict: "NAME: VALUE pairs", list: "a list"}.get(kind.plain, "one value")
