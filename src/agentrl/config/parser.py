"""Option dataclasses to flags in Hugging Face's syntax, and a YAML file with the same names.

``--bf16``, ``--bf16 false``, ``--learning_rate 1e-4``, JSON for mappings, lists as several values. ``--config FILE`` is
expanded to flags before the flags of the command line, so every value is converted once and flags win.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from agentrl.errors import ConfigError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        option, _, text = message.removeprefix("argument ").partition(": ")
        raise ConfigError(text, setting=option) if text else ConfigError(message)


def parse_groups(
    groups: Sequence[type], argv: Sequence[str], *, command: str, description: str = ""
) -> dict[type, Any]:
    """Instances by group; raise ``ConfigError`` that names the option or the file's key."""
    parser = build_parser(groups, command=command, description=description)
    known = {alias: field.name for group in groups for field in dataclasses.fields(group) for alias in names(field)}
    arguments = refuse_unknown(expand_config(argv, known), known)
    values = vars(parser.parse_args(arguments))
    given = {name for name, value in values.items() if value is not None}
    built = {}
    for group in groups:
        own = {field.name for field in dataclasses.fields(group)}
        built[group] = group(**{name: unset_none(values[name]) for name in own & given})
    return built


def build_parser(groups: Sequence[type], *, command: str, description: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"agentrl {command}",
        usage=f"agentrl {command} [--config FILE] [--OPTION VALUE ...]",
        description=description,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=118),
    )
    parser.add_argument("--config", metavar="FILE", help="YAML file with the names below; flags win over it")
    for group in groups:
        section = parser.add_argument_group((group.__doc__ or group.__name__).strip())
        for field in dataclasses.fields(group):
            section.add_argument(*(f"--{name}" for name in names(field)), **argument(group, field))
    return parser


def names(field: dataclasses.Field[Any]) -> tuple[str, ...]:
    alias = field.metadata.get("alias")
    return (field.name, alias) if alias else (field.name,)


def argument(group: type, field: dataclasses.Field[Any]) -> dict[str, Any]:
    """Keyword arguments of ``add_argument``; absent flags stay None, so that the dataclass gives defaults."""
    kind, optional = plain_type(typing.get_type_hints(group)[field.name])
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    spec: dict[str, Any] = {"help": help_text(field.metadata["help"], default), "default": None, "dest": field.name}
    if field.metadata.get("choices"):
        spec["choices"] = field.metadata["choices"]
    spec["metavar"] = field.metadata.get("metavar") or (None if spec.get("choices") else kind.__name__.upper())
    if kind is bool:
        return {**spec, "type": converter(to_bool, optional), "nargs": "?", "const": True}
    if kind is list:
        return {**spec, "type": str, "nargs": "*"}
    if kind is dict:
        return {**spec, "type": converter(to_mapping, optional), "metavar": "JSON"}
    return {**spec, "type": converter(kind, optional)}


def plain_type(annotation: Any) -> tuple[type, bool]:
    """``float | None`` -> (float, True); ``list[str]`` -> (list, False)."""
    if isinstance(annotation, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        assert len(kinds) == 1, annotation
        return plain_type(kinds[0])[0], True
    return typing.get_origin(annotation) or annotation, False


def help_text(text: str, default: Any) -> str:
    shown = "" if default in ("", [], {}, None) else f" (default: {default})"
    return (text + shown).replace("%", "%%")


class _Unset:
    """A value given as none: the option is set, to nothing."""


def unset_none(value: Any) -> Any:
    return None if value is _Unset else value


def converter(kind: Any, optional: bool) -> Any:
    def convert(text: str) -> Any:
        if optional and text.lower() in ("none", "null"):
            return _Unset
        return kind(text)

    convert.__name__ = getattr(kind, "__name__", str(kind)).removeprefix("to_")
    return convert


def to_bool(text: str) -> bool:
    known = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in known:
        raise ValueError(text)
    return known[text.lower()]


def to_mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


def expand_config(argv: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Replace ``--config FILE`` by the flags the file stands for, ahead of all others."""
    rest, expanded = [], []
    arguments = iter(argv)
    for word in arguments:
        flag, equals, value = word.partition("=")
        if flag != "--config":
            rest.append(word)
            continue
        path = value if equals else next(arguments, "")
        if not path:
            raise ConfigError("expects the path of a YAML file", setting="--config")
        expanded += flags_of_file(Path(path), known)
    return expanded + rest


def flags_of_file(path: Path, known: Mapping[str, str]) -> list[str]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", setting=f"--config {path}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"is not YAML: {error}", setting=f"--config {path}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"expects NAME: VALUE lines, found {type(content).__name__}", setting=f"--config {path}")
    flags = []
    for name, value in content.items():
        if name not in known:
            raise ConfigError(f"unknown key {name!r}{nearest(str(name), known)}", setting=f"--config {path}")
        flags += as_flags(str(name), value)
    return flags


def as_flags(name: str, value: Any) -> list[str]:
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]
    if isinstance(value, dict):
        return [f"--{name}={json.dumps(value)}"]
    if isinstance(value, bool):
        return [f"--{name}={str(value).lower()}"]
    return [f"--{name}={'none' if value is None else value}"]


def refuse_unknown(arguments: Sequence[str], known: Mapping[str, str]) -> list[str]:
    """Fold dashes inside names to underscores; raise on a flag nobody knows."""
    folded = []
    for word in arguments:
        if not word.startswith("--"):
            folded.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if name not in known and name not in ("help", "config"):
            raise ConfigError(f"unknown option{nearest(name, known)}", setting=flag)
        folded.append(f"--{name}{equals}{value}")
    return folded


def nearest(name: str, known: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean --{close[0]}?" if close else ""
