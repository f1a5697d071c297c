"""The tools that a profile offers, and which of them a name means: an id, an alias or a bare name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from agentdock.calls import ToolInfo, UnknownTool
from agentdock.config import Profile

MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DockTool:
    """A tool as a profile offers it. ``id`` is ``server.name``; ``server`` may itself contain dots."""

    id: str
    server: str
    name: str
    description: str
    input_schema: Mapping[str, Any]
    annotations: Mapping[str, Any]
    idempotent: bool
    title: str = ""
    output_schema: Mapping[str, Any] | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)


class Catalogue:
    """All tools of one profile. Names are resolved from what is configured and listed, never from who came first."""

    def __init__(
        self,
        profile: Profile,
        tools: Mapping[str, Iterable[ToolInfo]],
        *,
        server_aliases: Mapping[str, tuple[str, ...]],
        tool_aliases: Mapping[str, str],
    ) -> None:
        """``tools`` and ``server_aliases`` are by server name; a server alias may be shared by several servers."""
        self.profile = profile
        self.tools = tuple(
            _dock_tool(server, tool)
            for server, infos in tools.items()
            if not profile.servers or server in profile.servers
            for tool in infos
            if any(fnmatchcase(f"{server}.{tool.name}", pattern) for pattern in profile.tools)
        )
        self._by_id = {tool.id: tool for tool in self.tools}
        self._aliases: dict[str, list[DockTool]] = {}
        for tool in self.tools:
            for name in (tool.name, *(f"{alias}.{tool.name}" for alias in server_aliases.get(tool.server, ()))):
                self._aliases.setdefault(name, []).append(tool)
        for alias, tool_id in tool_aliases.items():
            if tool_id in self._by_id:
                self._aliases[alias] = [self._by_id[tool_id]]

    def find(self, name: str) -> DockTool:
        """The tool that ``name`` means; raise ``UnknownTool`` with near names, or with all that it could mean."""
        if name in self._by_id:
            return self._by_id[name]
        found = self._aliases.get(name, [])
        if len(found) == 1:
            return found[0]
        if found:
            ids = ", ".join(tool.id for tool in found)
            raise UnknownTool(f"tool name {name!r} is ambiguous; say which: {ids}")
        raise UnknownTool(f"there is no tool {name!r}; {self._hint(name)}")

    def _hint(self, name: str) -> str:
        names = [*self._by_id, *self._aliases]
        near = difflib.get_close_matches(name, names, MAX_NAMED)
        near += [
            known for known in self._by_id if known not in near and name.rpartition(".")[2] == known.rpartition(".")[2]
        ]
        if near:
            return "near names are " + ", ".join(near[:MAX_NAMED])
        if not self._by_id:
            return f"profile {self.profile.name!r} offers no tools"
        shown = ", ".join(list(self._by_id)[:MAX_NAMED])
        return f"there are {shown}" + (
            f" and {len(self._by_id) - MAX_NAMED} more" if len(self._by_id) > MAX_NAMED else ""
        )


def _dock_tool(server: str, tool: ToolInfo) -> DockTool:
    return DockTool(
        id=f"{server}.{tool.name}",
        server=server,
        name=tool.name,
        description=tool.description,
        input_schema=tool.input_schema,
        annotations=tool.annotations,
        idempotent=tool.idempotent,
        title=tool.title,
        output_schema=tool.output_schema,
        meta=tool.meta,
    )
