"""``python -m agentrl.config.pages`` writes ``docs/from_reference.md`` and ``docs/options-owed.md`` of a checkout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentrl.config.fates import ANY, ROWS, Fate
from agentrl.config.groups import AlgoOptions
from agentrl.config.presets import PRESETS
from agentrl.config.reference import THEIRS
from agentrl.config.run import GROUPS

DOCS = Path(__file__).resolve().parents[3] / "docs"

FROM_REFERENCE = """# Coming from the reference

Written by `python -m agentrl.config.pages` from `src/agentrl/config/`; do not edit.

Command lines of the reference's scripts can be used as they are: every option of its configs.py and of Hugging Face's
training arguments is known here. It is kept, accepted without effect (one line at start says so), refused with what to
use in its place, or not built yet ([options-owed.md](options-owed.md)). What each kept option does is in
[configuration.md](configuration.md).
"""

OWED = """# Options that are not built yet

Written by `python -m agentrl.config.pages` from `src/agentrl/config/fates.py`; do not edit.

Each is known, accepts the values that mean what happens anyhow, and refuses others with what to do until then.
"""


def from_reference() -> str:
    return "\n".join(
        [
            FROM_REFERENCE,
            *section(
                "Defaults that differ, in value or in meaning", ("option", "there", "here", "why"), changed_defaults()
            ),
            *section("Defaults that are the same", ("option", "default"), same_defaults()),
            *section("Recommended sets: `--preset`", ("preset", "sets", "differs from our defaults in"), preset_rows()),
            *section("Accepted without effect", ("option", "values", "why"), idle_rows()),
            *section("Refused", ("option", "accepted all the same", "use"), other_rows(Fate.REFUSED)),
        ]
    )


def options_owed() -> str:
    header = ("option", "issue", "accepted already", "until then")
    rows = sorted(row for row in owed_rows())
    return "\n".join([OWED, *table(header, rows), ""])


def section(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"## {title}", "", *table(header, rows), ""]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def ours() -> dict[str, Any]:
    return {field.name: getattr(group(), field.name) for group in GROUPS for field in dataclasses.fields(group)}


def changed_defaults() -> list[tuple[str, ...]]:
    here = ours()
    return [
        (code(name), code(theirs.default), code(here[name]), theirs.reason)
        for name, theirs in THEIRS.items()
        if theirs.reason
    ]


def same_defaults() -> list[tuple[str, ...]]:
    return [(code(name), code(theirs.default)) for name, theirs in THEIRS.items() if not theirs.reason]


def preset_rows() -> list[tuple[str, ...]]:
    usual = AlgoOptions()
    return [
        (code(name), settings(preset), settings({k: v for k, v in preset.items() if getattr(usual, k) != v}) or "-")
        for name, preset in PRESETS.items()
    ]


def settings(values: dict[str, Any] | Any) -> str:
    return ", ".join(
        f"`{name}` {str(value).lower() if isinstance(value, bool) else value}" for name, value in values.items()
    )


def idle_rows() -> list[tuple[str, ...]]:
    return [
        (code(row.name), "all" if row.noted == ANY else values(row.noted), row.note)
        for row in ROWS
        if row.fate is Fate.IDLE
    ]


def other_rows(fate: Fate) -> list[tuple[str, ...]]:
    return [(code(row.name), values(row.taken), row.instead) for row in ROWS if row.fate is fate]


def owed_rows() -> list[tuple[str, ...]]:
    return [
        (code(row.name), row.issue, values((*row.taken, *row.noted)), row.instead)
        for row in ROWS
        if row.fate is Fate.OWED
    ]


def values(texts: Sequence[str]) -> str:
    return ", ".join(code(text) for text in texts if text) or "-"


def code(value: object) -> str:
    if value in ("", None, [], {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    (DOCS / "from_reference.md").write_text(from_reference(), encoding="utf-8")
    (DOCS / "options-owed.md").write_text(options_owed(), encoding="utf-8")
