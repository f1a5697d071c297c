"""A profile's tools in the forms that model APIs and MCP clients take, under names that all of them allow."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from agentdock.catalogue import DockTool

MAX_NAME = 64
FORMATS = ("openai", "anthropic", "mcp")


def safe_names(tools: Sequence[DockTool]) -> dict[str, DockTool]:
    """Name -> tool, each name matching ``[A-Za-z0-9_-]{1,64}``: the bare name where only one tool has it.

    Otherwise ``server_tool``, and where even that is not unique or too long, with a digest of the id at its end: the
    names follow from the set of tools alone, not from its order.
    """
    bare = Counter(_safe(tool.name) for tool in tools)
    full = Counter(_safe(tool.id) for tool in tools)
    return {_name(tool, bare, full): tool for tool in tools}


def _name(tool: DockTool, bare: Counter[str], full: Counter[str]) -> str:
    name = _safe(tool.name)
    if bare[name] == 1 and len(name) <= MAX_NAME:
        return name
    name = _safe(tool.id)
    if full[name] == 1 and bare[name] == 0 and len(name) <= MAX_NAME:
        return name
    return f"{name[: MAX_NAME - 9]}_{hashlib.sha256(tool.id.encode()).hexdigest()[:8]}"


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", name) or "_"


def as_openai(tool: DockTool, name: str) -> dict[str, Any]:
    parameters = dict(tool.input_schema)
    return {"type": "function", "function": {"name": name, "description": tool.description, "parameters": parameters}}


def as_anthropic(tool: DockTool, name: str) -> dict[str, Any]:
    return {"name": name, "description": tool.description, "input_schema": dict(tool.input_schema)}


def as_mcp(tool: DockTool, name: str) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "name": name,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
        "_meta": {**tool.meta, "agentdock/id": tool.id},
    }
    if tool.title:
        listed["title"] = tool.title
    if tool.output_schema is not None:
        listed["outputSchema"] = dict(tool.output_schema)
    if tool.annotations:
        listed["annotations"] = dict(tool.annotations)
    return listed


WRITERS = {"openai": as_openai, "anthropic": as_anthropic, "mcp": as_mcp}


def written(tools: Sequence[DockTool], form: str) -> list[dict[str, Any]]:
    """``tools`` in one of ``FORMATS``, under their safe names."""
    return [WRITERS[form](tool, name) for name, tool in safe_names(tools).items()]
