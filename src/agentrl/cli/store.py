"""``agentrl store list | drop RUN``: which runs stores hold, and how one of them is deleted.

``list`` shows every run below ``output_dir``, or of the store of ``--db_connection_string``. ``drop`` says what it
would delete, and with ``--yes`` deletes it from its store; models, logs and checkpoints in its folder stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table

from agentrl.cli.status import STORE_FILE, StatusOptions, find_run, run_of_folder, runs_below
from agentrl.config.groups import option
from agentrl.config.names import nearest
from agentrl.config.parser import parse_groups
from agentrl.errors import ConfigError
from agentrl.store.inventory import Holding, drop_run, holdings
from agentrl.store.open import sqlite_path

COMMAND = "agentrl store"
ACTIONS = ("list", "drop")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """Store"""

    output_dir: str = option("output", "runs are folders below this one")
    db_connection_string: str = option("", "sqlite:///PATH of a store; default: those of the runs' folders")


@dataclass(frozen=True, slots=True, kw_only=True)
class DropOptions:
    """Deleting"""

    yes: bool = option(False, "delete; without it drop only says what it would delete")


def main(argv: Sequence[str]) -> int:
    action, rest = (argv[0], list(argv[1:])) if argv else ("", [])
    if action == "list":
        options = parse_groups((PlaceOptions,), rest, command="store list", description=__doc__ or "")
        show(places(options[PlaceOptions]), Console())
        return 0
    if action == "drop" or action in ("-h", "--help"):
        return drop(rest if action == "drop" else [action])
    raise ConfigError(f"list or drop RUN, not {action!r}{nearest(action, ACTIONS)}", setting=COMMAND)


def places(options: PlaceOptions) -> list[Path]:
    """Files of stores; one that several runs share is named once."""
    if options.db_connection_string:
        return [sqlite_path(options.db_connection_string)]
    output = Path(options.output_dir)
    urls = [run_of_folder(folder).url for folder in runs_below(output) if (folder / STORE_FILE).is_file()]
    if not urls:
        raise ConfigError(f"no store below {output}: give --output_dir or --db_connection_string", setting=COMMAND)
    return list(dict.fromkeys(map(sqlite_path, urls)))


def show(paths: Sequence[Path], console: Console) -> None:
    table = Table("run", "groups", "records", "turns", "rows", "size", "last write", "store")
    for path in paths:
        for each in holdings(path):
            kept = [
                f"{each.documents[kind]:,}" for kind in ("Task", "Record", "DispatchedSamplingTask", "DBRecordData")
            ]
            table.add_row(each.run, *kept, size(each.num_bytes), last_write(each), str(path))
    console.print(table)


def size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"


def last_write(holding: Holding) -> str:
    if holding.dropping:
        return "half deleted"
    return datetime.fromtimestamp(holding.updated_at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def drop(argv: list[str]) -> int:
    wanted = argv.pop(0) if argv and not argv[0].startswith("-") else ""
    options = parse_groups((PlaceOptions, DropOptions), argv, command="store drop RUN", description=__doc__ or "")
    if not wanted:
        raise ConfigError("which run? agentrl store list shows them", setting="RUN")
    place = options[PlaceOptions]
    found = find_run(
        wanted, StatusOptions(output_dir=place.output_dir, db_connection_string=place.db_connection_string)
    )
    path = sqlite_path(found.url)
    held = next(each for each in holdings(path) if each.run == found.run)
    what = ", ".join(f"{count:,} {kind}" for kind, count in held.documents.items() if count)
    if not options[DropOptions].yes:
        print(f"would delete run {found.run} from {path}: {what} ({size(held.num_bytes)}); --yes deletes it")
        return 0
    num_deleted = drop_run(path, found.run)
    print(f"deleted run {found.run} from {path}: {num_deleted:,} documents, {size(held.num_bytes)}")
    return 0
