"""``agentrl status [RUN]``: where a run stands and who in it waits for whom; reads, never writes.

RUN is the name of a run below ``output_dir``, its folder, or, with ``--db_connection_string``, a run of that store;
without it, the run that changed last. It may go on, have ended, or have crashed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.live import Live

from agentrl.cli.standing import Standing, as_json, look
from agentrl.cli.standing_view import shown
from agentrl.cli.waits import sentences
from agentrl.config import RunConfig
from agentrl.config.groups import option
from agentrl.config.parser import parse_groups
from agentrl.errors import ConfigError
from agentrl.store import open_store, stored_runs

logger = logging.getLogger(__name__)

LISTED_RUNS = 10
CONFIG_FILE, STORE_FILE = "config.yaml", "run.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions:
    """Status"""

    output_dir: str = option("output", "runs are folders below this one")
    db_connection_string: str = option("", "sqlite:///PATH of a store; default: that of the run's folder")
    json: bool = option(False, "print one JSON object; its keys are in docs/status.md")
    watch: float | None = option(None, "look again every so many seconds; the bare flag: 2", const=2.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A run, where its store is, and its configuration where that is known."""

    run: str
    url: str
    place: str
    folder: Path | None = None
    config: RunConfig | None = None


def main(argv: Sequence[str]) -> int:
    wanted, flags = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else ("", argv)
    options = parse_groups((StatusOptions,), flags, command="status [RUN]", description=__doc__ or "")[StatusOptions]
    if options.watch is not None and not options.watch > 0:
        raise ConfigError(f"expects seconds above 0, got {options.watch:g}", setting="--watch")
    asyncio.run(show(find_run(wanted, options), options, Console()))
    return 0


async def show(found: Found, options: StatusOptions, console: Console) -> None:
    """Once, or until Ctrl-C: in place on a terminal, one after the other elsewhere."""
    store = open_store(found.url, run=found.run, read_only=True)
    await store.open()
    in_place = console.is_terminal and options.watch is not None and not options.json
    live = Live(console=console, auto_refresh=False) if in_place else None
    try:
        with live or nullcontext():
            while True:
                standing = await look(store, place=found.place, folder=found.folder, config=found.config)
                tell(standing, options, console, live)
                if options.watch is None:
                    return
                await asyncio.sleep(options.watch)
    except asyncio.CancelledError:
        return  # Ctrl-C is how a watch ends
    finally:
        await store.close()


def tell(standing: Standing, options: StatusOptions, console: Console, live: Live | None) -> None:
    waits = sentences(standing)
    if options.json:
        indent = 2 if options.watch is None else None
        print(json.dumps(as_json(standing, waits), indent=indent, ensure_ascii=False), flush=True)
    elif live is not None:
        live.update(shown(standing, waits), refresh=True)
    else:
        console.print(shown(standing, waits), highlight=False)
        if options.watch is not None:
            console.print()


# --- Which run -------------------------------------------------------------------------------------------------------


def find_run(wanted: str, options: StatusOptions) -> Found:
    if options.db_connection_string:
        return run_of_store(wanted, options.db_connection_string)
    output = Path(options.output_dir)
    if not wanted:
        folders = runs_below(output)
        if not folders:
            there = f"no run below {output}" if output.is_dir() else f"there is no folder {output} here"
            raise ConfigError(f"{there}: give a run's folder, or --output_dir", setting="agentrl status")
        return run_of_folder(folders[0])
    for folder in (output / wanted, Path(wanted)):
        if is_run(folder):
            return run_of_folder(folder)
    if Path(wanted).is_file():
        raise ConfigError(
            f"{wanted} is a file: give the folder of the run, or a store by --db_connection_string sqlite:///PATH",
            setting="RUN",
        )
    raise ConfigError(f"no run {wanted!r}; {listed([path.name for path in runs_below(output)], output)}", setting="RUN")


def run_of_folder(folder: Path) -> Found:
    """A run that was given a store of its own is looked up there."""
    own_store = f"sqlite:///{folder / STORE_FILE}"
    config = config_of(folder)
    if config is None:
        return replace(run_of_store("", own_store, place=str(folder)), folder=folder)
    url = config.run.db_connection_string or own_store
    if url == own_store and not (folder / STORE_FILE).is_file():
        raise ConfigError(
            f"{folder} has a {CONFIG_FILE} and no {STORE_FILE}: it ended before it did anything, or has just begun",
            setting="RUN",
        )
    found = run_of_store(config.run.run_name, url, place=str(folder))
    return replace(found, folder=folder, config=config)


def config_of(folder: Path) -> RunConfig | None:
    """None where there is none, or one that this version cannot read: the store can be looked at all the same."""
    path = folder / CONFIG_FILE
    if not path.is_file():
        return None
    try:
        return RunConfig.parse(["--config", str(path)], command="status")
    except ConfigError as error:
        logger.warning("%s; looking at %s without it", error, folder / STORE_FILE)
        return None


def run_of_store(wanted: str, url: str, *, place: str = "") -> Found:
    runs = stored_runs(url)
    if (wanted and wanted not in runs) or not runs:
        raise ConfigError(f"no run {wanted!r}; {listed(runs, url)}" if wanted else f"{url} holds no run", setting="RUN")
    return Found(run=wanted or runs[0], url=url, place=place or url)


def is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file() or (folder / STORE_FILE).is_file()


def runs_below(output: Path) -> list[Path]:
    """Folders of runs, the one that changed last at first."""
    folders = [path for path in output.iterdir() if is_run(path)] if output.is_dir() else []
    return sorted(folders, key=last_change, reverse=True)


def last_change(folder: Path) -> float:
    files = (folder / name for name in (CONFIG_FILE, STORE_FILE, f"{STORE_FILE}-wal", "metrics.jsonl"))
    return max(path.stat().st_mtime for path in files if path.exists())


def listed(runs: Sequence[str], place: object) -> str:
    if not runs:
        return f"there is none in {place}"
    more = f" and {len(runs) - LISTED_RUNS} more" if len(runs) > LISTED_RUNS else ""
    return f"{place} has {', '.join(runs[:LISTED_RUNS])}{more}"
