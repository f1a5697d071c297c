"""``python -m agentrl.cli.docs`` writes ``docs/configuration.md`` of a checkout from the option groups."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, get_type_hints

from agentrl.config.parser import names, plain_type
from agentrl.config.run import GROUPS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"

HEAD = """# Options

Written by `python -m agentrl.cli.docs` from `src/agentrl/config/groups.py`; do not edit.

Every option is a flag of every command that reads it, and a key of the YAML file that `--config` names:

```
agentrl run run.yaml --num_generations 16 --token_level_loss false
```

* Flags win over the file, later flags over earlier ones. Dashes in names may be underscores.
* A switch is on as a bare flag (`--sync_sampling`) or has a value: true, false, yes, no, on, off, 1, 0.
* Mappings are JSON on the command line (`--eval_sampling_params '{"top_p": 0.9}'`), `{top_p: 0.9}` in a file.
* A list takes several values (`--mcp_manager_url builtin:calculator builtin:python`), `[a, b]` in a file.
* `none` leaves an option unset whose default is unset.
* An unknown name is an error that names the nearest; what cannot work together is refused before anything starts.
* The configuration of a run is saved in its folder as `config.yaml`, which is enough to run it again.
"""


def page() -> str:
    return "\n".join([HEAD, *(section(group) for group in GROUPS)])


def section(group: type) -> str:
    rows = [row(group, field) for field in dataclasses.fields(group)]
    title = (group.__doc__ or group.__name__).strip()
    return "\n".join([f"## {title}", "", "| option | takes | default | meaning |", "|---|---|---|---|", *rows, ""])


def row(group: type, field: dataclasses.Field[Any]) -> str:
    shown = ", ".join(f"`--{name}`" for name in names(field))
    meaning = field.metadata["help"].replace("|", "\\|")
    return f"| {shown} | {takes(group, field)} | {default(field)} | {meaning} |"


def takes(group: type, field: dataclasses.Field[Any]) -> str:
    if choices := field.metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in choices)
    kind = plain_type(get_type_hints(group)[field.name])
    words = {bool: "switch", int: "whole number", float: "number", str: "text", list: "texts", dict: "mapping"}
    return words[kind.plain] + (" or none" if kind.optional else "")


def default(field: dataclasses.Field[Any]) -> str:
    value = field.default if field.default is not dataclasses.MISSING else field.default_factory()  # type: ignore[misc]
    if value in ("", [], {}, None):
        return ""
    text = {bool: str(value).lower(), dict: json.dumps(value)}.get(type(value), str(value))
    return f"`{text}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
