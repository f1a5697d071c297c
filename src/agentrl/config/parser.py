"""Option dataclasses to flags in Hugging Face's syntax, and a YAML file with the same names.

``--bf16``, ``--bf16 false``, ``--learning_rate 1e-4``, JSON for mappings, lists as several values. ``--config FILE`` is
expanded to flags before the flags of the command line, so every value is converted once and flags win.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

from agentrl.config.fates import Row
from agentrl.config.file import Kind, flags_of_file
from agentrl.config.names import nearest
from agentrl.errors import ConfigError

TRUE, FALSE = ("true", "1", "yes", "y", "t", "on"), ("false", "0", "no", "n", "f", "off")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            stray = message.removeprefix("unrecognized arguments: ")
            raise ConfigError(f"{stray} belongs to no option: a value follows its --OPTION")
        option, _, text = message.removeprefix("argument ").partition(": ")
        raise ConfigError(text, setting=option) if text else ConfigError(message)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """``values`` by group and name, only of what was given; ``notices`` are the lines of accepted names without
    effect."""

    values: dict[type, dict[str, Any]]
    notices: tuple[str, ...]

    def build(self) -> dict[type, Any]:
        """Instances by group; what was not given has its default."""
        return {group: group(**values) for group, values in self.values.items()}

    @property
    def given(self) -> frozenset[str]:
        return frozenset(name for values in self.values.values() for name in values)


def parse_groups(
    groups: Sequence[type], argv: Sequence[str], *, command: str, description: str = ""
) -> dict[type, Any]:
    """Instances by group; raise ``ConfigError`` that names the option or the file's key."""
    return parse_options(groups, argv, command=command, description=description).build()


def parse_options(
    groups: Sequence[type],
    argv: Sequence[str],
    *,
    command: str,
    description: str = "",
    others: Mapping[str, Row] = MappingProxyType({}),
) -> Parsed:
    """As ``parse_groups``, and each of ``others`` that is given is accepted or refused by its row."""
    parser = build_parser(groups, command=command, description=description)
    for name in others:
        parser.add_argument(f"--{name}", nargs="*", help=argparse.SUPPRESS)
    kinds = kinds_of(groups)
    words, files = without_config(argv)
    flags = refuse_repeated(fold(words, kinds, others), kinds)
    known = {**kinds_of_others(others), **kinds}
    expanded = [flag for path in files for flag in checked(parser, flags_of_file(path, known), path)]
    parsed = vars(parser.parse_args([*expanded, *flags]))
    given = {name for name, value in parsed.items() if value is not None}
    own = {group: [field.name for field in dataclasses.fields(group)] for group in groups}
    lines = [others[name].judge(" ".join(parsed[name]) if parsed[name] else "true") for name in others if name in given]
    return Parsed(
        values={group: {name: unset_none(parsed[name]) for name in own[group] if name in given} for group in groups},
        notices=tuple(line for line in lines if line),
    )


def checked(parser: argparse.ArgumentParser, flags: list[str], path: Path) -> list[str]:
    """``flags`` of a file; an error in a value names the file beside the option."""
    try:
        parser.parse_args(flags)
    except ConfigError as error:
        raise ConfigError(str(error), setting=f"--config {path}") from error
    return flags


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
    plain = plain_type(typing.get_type_hints(group)[field.name])
    kind, optional = plain.plain, plain.optional
    default = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    spec: dict[str, Any] = {"help": help_text(field.metadata["help"], default), "default": None, "dest": field.name}
    if field.metadata.get("choices"):
        spec["choices"] = field.metadata["choices"]
    spec["metavar"] = field.metadata.get("metavar") or (None if spec.get("choices") else kind.__name__.upper())
    if kind is bool:
        return {**spec, "type": converter(to_bool, optional), "nargs": "?", "const": True}
    if kind is list:
        return {**spec, "type": str, "nargs": "*"}
    if "const" in field.metadata:
        spec |= {"nargs": "?", "const": field.metadata["const"]}
    if kind is dict:
        return {**spec, "type": converter(to_mapping, optional), "metavar": "JSON"}
    return {**spec, "type": converter(kind, optional)}


def kinds_of(groups: Sequence[type]) -> dict[str, Kind]:
    """What each option takes, under all its names."""
    found = {}
    for group in groups:
        hints = typing.get_type_hints(group)
        found |= {name: plain_type(hints[field.name]) for field in dataclasses.fields(group) for name in names(field)}
    return found


def kinds_of_others(others: Mapping[str, Row]) -> dict[str, Kind]:
    """Any text is read, so that the row can say what becomes of it."""
    return {name: Kind(plain=Any, optional=True) for name in others}


def plain_type(annotation: Any) -> Kind:
    """``float | None`` is an optional float, ``list[str]`` a list."""
    if isinstance(annotation, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        assert len(kinds) == 1, annotation
        return Kind(plain=plain_type(kinds[0]).plain, optional=True)
    return Kind(plain=typing.get_origin(annotation) or annotation, optional=False)


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

    convert.__name__ = NAMES_OF_CONVERTERS.get(kind, getattr(kind, "__name__", str(kind)))
    return convert


def to_bool(text: str) -> bool:
    if text.lower() not in TRUE + FALSE:
        raise ValueError(text)
    return text.lower() in TRUE


def to_mapping(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(text)
    return value


NAMES_OF_CONVERTERS = {to_bool: "bool", to_mapping: "JSON mapping"}
"""As argparse says them: ``invalid bool value``."""


def without_config(argv: Sequence[str]) -> tuple[list[str], list[Path]]:
    """All other words, and the files of ``--config FILE`` in their order."""
    words: list[str] = []
    files: list[Path] = []
    rest = iter(argv)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag != "--config":
            words.append(word)
            continue
        path = value if equals else next(rest, "")
        if not path or path.startswith("--"):
            raise ConfigError("expects the path of a YAML file", setting="--config")
        files.append(Path(path))
    return words, files


def fold(words: Sequence[str], known: Mapping[str, Kind], others: Mapping[str, Row]) -> list[str]:
    """Dashes inside names become underscores; raise on a flag nobody knows."""
    folded = []
    for word in words:
        if not word.startswith("--"):
            folded.append(word)
            continue
        flag, equals, value = word.partition("=")
        name = flag[2:].replace("-", "_")
        if name not in known and name not in others and name != "help":
            raise ConfigError(f"unknown option{nearest(name, {**known, **others}, prefix='--')}", setting=flag)
        folded.append(f"--{name}{equals}{value}")
    return folded


def refuse_repeated(flags: list[str], kinds: Mapping[str, Kind]) -> list[str]:
    """The last of several values wins, but a list given twice was meant as one."""
    lists = [name for flag in flags if (name := flag[2:].partition("=")[0]) in kinds and kinds[name].plain is list]
    for name in lists:
        if lists.count(name) > 1:
            raise ConfigError("is given twice: put all its values after one", setting=f"--{name}")
    return flags
