"""The names under which a gateway's callers know tools, kept as long as the list of tools stands."""

from __future__ import annotations

from collections.abc import Mapping

from agentdock.calls import UnknownTool
from agentdock.catalogue import DockTool
from agentdock.dock import Dock
from agentdock.gateway.formats import safe_names


class ToolNames:
    def __init__(self, dock: Dock) -> None:
        self._dock = dock
        self._named: dict[str, tuple[tuple[DockTool, ...], Mapping[str, DockTool]]] = {}

    def named(self, profile: str) -> Mapping[str, DockTool]:
        """The tools of ``profile`` by the names of ``formats.safe_names``."""
        tools = self._dock.tools(profile=profile)
        known = self._named.get(profile)
        if known is None or known[0] is not tools:
            known = self._named[profile] = (tools, safe_names(tools))
        return known[1]

    def find(self, name: str, profile: str) -> DockTool:
        """The tool that an id, an alias, a bare name or a safe name means; raise ``UnknownTool``."""
        try:
            return self._dock.find(name, profile=profile)
        except UnknownTool:
            tool = self.named(profile).get(name)
            if tool is None:
                raise
            return tool
