"""One table from the names a model sees to server and tool, and the part of it that an episode may use."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from agentdock.supervisor import ToolInfo
from agentrl.errors import ConfigError, ToolError
from agentrl.types import ResultStatus, ToolSpec

MAX_NAME_LENGTH = 64
NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME_LENGTH}}}")
HASH_LENGTH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A tool under its shown name ``spec.name``, and the server and name it is called by."""

    spec: ToolSpec
    server: str
    tool: str


class Catalogue:
    """Shown name -> ``Entry``. Immutable; ``select`` gives a smaller one."""

    def __init__(self, entries: Iterable[Entry], servers: Sequence[str]) -> None:
        self._entries = {entry.spec.name: entry for entry in entries}
        self.servers = tuple(servers)

    @classmethod
    def of(cls, listing: Mapping[str, Sequence[ToolInfo]]) -> Self:
        """Name every tool of ``listing`` (server -> tools); the names depend on the set, not on its order."""
        names = shown_names([(server, tool.name) for server, tools in listing.items() for tool in tools])
        entries = [
            Entry(
                spec=ToolSpec(
                    name=names[server, tool.name],
                    description=tool.description,
                    parameters=tool.input_schema,
                    server=server,
                    idempotent=tool.idempotent,
                ),
                server=server,
                tool=tool.name,
            )
            for server, tools in listing.items()
            for tool in tools
        ]
        return cls(entries, tuple(listing))

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(entry.spec for entry in self._entries.values())

    def find(self, name: str) -> Entry:
        """The entry shown as ``name``; raise ``ToolError`` that lists what there is."""
        entry = self._entries.get(name)
        if entry is None:
            known = ", ".join(self._entries) or "none"
            raise ToolError(f"There is no tool {name!r}. Available tools: {known}.", status=ResultStatus.REJECTED)
        return entry

    def select(self, allow: Sequence[str] | None, servers: Sequence[str] | None) -> Catalogue:
        """The entries on ``servers`` that ``allow`` names: as shown, as ``server.tool`` or as the server calls them.

        Raises ``ConfigError`` for names that nothing answers to.
        """
        entries = list(self._entries.values())
        if servers is not None:
            unknown = [server for server in servers if server not in self.servers]
            if unknown:
                raise ConfigError(
                    f"no tool server {_quoted(unknown)}; there are {_quoted(self.servers)}", setting="--mcp_server_name"
                )
            entries = [entry for entry in entries if entry.server in servers]
        if allow is not None:
            answering = {name: [e for e in entries if _answers(e, name)] for name in allow}
            unknown = [name for name, found in answering.items() if not found]
            if unknown:
                known = _quoted(entry.spec.name for entry in entries)
                raise ConfigError(f"no tool {_quoted(unknown)}; the servers in use offer {known}", setting="tools")
            chosen = {entry.spec.name for found in answering.values() for entry in found}
            entries = [entry for entry in entries if entry.spec.name in chosen]
        return Catalogue(entries, self.servers)


def shown_names(tools: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(server, tool) -> a valid name, unique in the set.

    A valid name that one server alone uses stays. A name of several servers becomes ``server_tool`` for each. Whatever
    is then not valid or already taken gets odd characters replaced and a hash of server and tool.
    """
    owners: dict[str, set[str]] = {}
    for server, tool in tools:
        owners.setdefault(tool, set()).add(server)
    wanted = {(s, t): t if len(owners[t]) == 1 else f"{s}_{t}" for s, t in tools}
    as_they_are = [key for key in wanted if wanted[key] == key[1] and NAME.fullmatch(key[1])]
    names = {key: key[1] for key in as_they_are}
    taken = set(names.values())
    for key in sorted(wanted.keys() - names.keys()):
        name = wanted[key]
        if not NAME.fullmatch(name) or name in taken:
            name = _hashed(name, key)
        names[key] = name
        taken.add(name)
    return names


def _hashed(name: str, key: tuple[str, str]) -> str:
    digest = hashlib.sha256("\0".join(key).encode()).hexdigest()[:HASH_LENGTH]
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return f"{plain[: MAX_NAME_LENGTH - HASH_LENGTH - 1]}_{digest}"


def _answers(entry: Entry, name: str) -> bool:
    return name in (entry.spec.name, entry.tool, f"{entry.server}.{entry.tool}")


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
