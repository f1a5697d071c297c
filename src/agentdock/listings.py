"""The tools of servers as they were last listed, kept in a file, so that a lazy server need not start to be listed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from agentdock.calls import ToolInfo
from agentdock.discovery import write_private
from agentdock.spec import ServerSpec

LISTINGS_FILE = "tools.json"


class Listings:
    """Lists in ``folder``, found again only by a server whose entry in the configuration is still the same."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LISTINGS_FILE
        self._lists = _read(self._path)

    def find(self, spec: ServerSpec) -> tuple[ToolInfo, ...]:
        try:
            return tuple(ToolInfo(**tool) for tool in self._lists.get(fingerprint(spec), ()))
        except TypeError:
            return ()

    def keep(self, spec: ServerSpec, tools: tuple[ToolInfo, ...]) -> None:
        if not tools or self.find(spec) == tools:
            return
        self._lists[fingerprint(spec)] = [asdict(tool) for tool in tools]
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(self._path, json.dumps(self._lists, ensure_ascii=False))


def fingerprint(spec: ServerSpec) -> str:
    """Changes with what is run, not with how it is offered."""
    parts = {field.name: getattr(spec, field.name) for field in fields(spec) if field.name != "serving"}
    parts["env"] = dict(sorted(spec.env.items()))
    parts["idempotent_tools"] = sorted(spec.idempotent_tools)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _read(path: Path) -> dict[str, list[Mapping[str, Any]]]:
    try:
        lists = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return lists if isinstance(lists, dict) else {}
