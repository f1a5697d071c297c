"""``agentrl status``: which run is meant, what is shown of it, and who is said to wait for whom."""

import asyncio
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_help import configured, questions, with_store
from rich.console import Console

from agentrl.cli.evaluation import EVALUATIONS, Evaluation
from agentrl.cli.feed import evaluation_tasks, training_tasks
from agentrl.cli.presence import note_end
from agentrl.cli.standing import Standing, as_json, look
from agentrl.cli.standing_view import shown
from agentrl.cli.status import Found, StatusOptions, find_run, main, show
from agentrl.cli.waits import duration, sentences
from agentrl.errors import ConfigError, StoreError
from agentrl.store import Store, open_store, stored_runs
from agentrl.types import InferenceService, Record, RecordStatus, ServiceStatus, Split, WeightVersion, Worker

DOCS = Path(__file__).resolve().parents[2] / "docs" / "status.md"
ELSEWHERE = {"host": "far", "pid": 7}


def standing_of(folder: Path, scenario: Callable[[Store], Awaitable[Any]], **changes: Any) -> Standing:
    """How a run stands in which ``scenario`` happened; ``changes`` replace what was seen."""
    config = configured(folder, "--groups_per_step=4")

    async def seen(store: Store) -> Standing:
        await scenario(store)
        return await look(store, place="output/r", folder=config.folder, config=config)

    return replace(with_store(config, seen), **changes)


async def pushed(store: Store, num_tasks: int = 6) -> None:
    await store.publish_version(WeightVersion(version=0, step=0, parent=None))
    await store.add_tasks(training_tasks(configured(Path("x")), questions(num_tasks)))


async def works(store: Store, kind: str, **fields: Any) -> Worker:
    worker = Worker(**{"id": kind, "kind": kind, "host": "far", "pid": 7} | fields)
    await store.heartbeat(worker)
    return worker


async def claimed(store: Store, owner: str) -> Any:
    claim = await store.claim(owner, splits=(Split.TRAIN,))
    assert claim is not None
    return claim


# --- Who waits for whom ----------------------------------------------------------------------------------------------


def test_a_trainer_waits_for_groups_that_a_sampler_plays(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await pushed(store)
        waits = "samplers to finish 4 groups for step 1"
        await works(store, "trainer", waiting_for=waits, deadline=time.time() + 125)
        await works(store, "sampler")
        claim = await claimed(store, "sampler")
        await claimed(store, "sampler")
        await store.finish_record(claim, Record(task=claim.task.id, slot=0, attempt=0, status=RecordStatus.SCORED))

    said = sentences(standing_of(tmp_path, scenario))
    waits = "trainer 7@far waits for samplers to finish 4 groups for step 1: 0 ready, 4 more to come, 2 being played"
    assert re.fullmatch(re.escape(waits) + r" \(gives up in 2 min \d s\)", said[0])
    assert said[1:] == ["sampler 7@far plays 2 groups, oldest 0 s, 1 of 2 episodes done"]


def test_what_was_awaited_for_a_step_that_is_trained_is_over(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await pushed(store)
        await store.publish_version(WeightVersion(version=1, step=1, parent=0))
        await works(store, "trainer", waiting_for="samplers to finish 4 groups for step 1")
        await works(store, "sampler", waiting_for="the trainer to publish step 2 (max_staleness 0)")

    said = sentences(standing_of(tmp_path, scenario))
    assert said == [
        "trainer 7@far works on step 2",
        "sampler 7@far waits for the trainer to publish step 2 (max_staleness 0)",
    ]


def test_the_dead_the_late_and_silent_engines_come_first(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await pushed(store)
        await works(store, "trainer")
        await works(store, "sampler")
        await claimed(store, "sampler")
        await store.put_service(InferenceService(url="http://e:1", kind="slots", model="m", running=2))
        down = ServiceStatus.DOWN
        await store.put_service(
            InferenceService(url="http://e:2", kind="slots", model="m", status=down, last_error="failed: no memory")
        )

    seen = standing_of(tmp_path, scenario)
    trainer, sampler = seen.workers
    up, down = seen.services
    seen = replace(
        seen,
        workers=[replace(trainer, age_seconds=14.0), replace(sampler, alive=False, age_seconds=75.0)],
        services=[replace(up, age_seconds=40.0), replace(down, age_seconds=41.0)],
    )
    assert sentences(seen) == [
        "trainer 7@far is LATE: no heartbeat for 14 s",
        "sampler 7@far DIED: last heartbeat 1 min 15 s ago, it never left; others may take its 1 group",
        "engine http://e:1 is registered as UP and was not heard of for 40 s",
        "engine http://e:2 is DOWN for 41 s: failed: no memory",
        "trainer 7@far works on step 1",
        "6 groups to play (1 of them begun), and no sampler is alive",
    ]


def test_groups_that_nobody_trains_and_groups_that_lost_their_sampler_are_told(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await pushed(store, 2)
        await works(store, "sampler", id="gone")
        await claimed(store, "gone")
        await store.leave("gone")
        await works(store, "sampler")

    seen = standing_of(tmp_path, scenario)
    train = replace(seen.queues[Split.TRAIN], ready=1)
    assert sentences(replace(seen, queues={**seen.queues, Split.TRAIN: train})) == [
        "sampler 7@far works",
        "1 group lost their sampler and will be played by another",
        "1 finished group to train, and no trainer is alive",
    ]


def test_of_a_finished_run_nobody_waits(tmp_path: Path) -> None:
    async def scenario(store: Store) -> None:
        await pushed(store, 3)
        await note_end(store, "finished", "")

    seen = standing_of(tmp_path, scenario)
    assert seen.state == "finished"
    assert sentences(seen) == ["nobody: the run is finished; left over: 3 groups not played"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (7325, "2 h 2 min"), (90_000, "1 d 1 h"), (-3, "0 s")],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- In what state a run is ------------------------------------------------------------------------------------------


def test_a_run_goes_on_crashed_ended_or_is_idle(tmp_path: Path) -> None:
    async def nothing(store: Store) -> None: ...

    async def alive(store: Store) -> None:
        await works(store, "trainer", host=socket.gethostname(), pid=os.getpid())

    async def killed(store: Store) -> None:
        await store.leave("trainer")
        await works(store, "trainer", host=socket.gethostname(), pid=gone_pid())

    async def failed(store: Store) -> None:
        await note_end(store, "failed", "ProcessDied: the trainer died\nits last words")

    assert [standing_of(tmp_path, each).state for each in (nothing, alive, killed, failed)] == [
        "idle",
        "running",
        "crashed",
        "failed",
    ]


def test_planned_steps_are_those_of_the_groups_unless_max_steps_says_so(tmp_path: Path) -> None:
    seen = standing_of(tmp_path, lambda store: pushed(store, 6))
    assert seen.planned_steps == 2

    async def asked(store: Store) -> Standing:
        return await look(store, place="", folder=None, config=configured(tmp_path, "--max_steps=9"))

    assert with_store(configured(tmp_path), asked).planned_steps == 9


def test_the_newest_step_is_read_off_the_metrics(tmp_path: Path) -> None:
    folder = configured(tmp_path).folder
    folder.mkdir(parents=True)
    lines = [
        {"kind": "step", "step": 1, "reward": 0.1, "staleness": 0.0},
        {"kind": "step", "step": 2, "reward": 0.5, "staleness": 1.0, "other": 3},
        {"kind": "record", "id": "x", "step": 3},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"kind": "step", "ste')
    assert standing_of(tmp_path, pushed).last_step == {"reward": 0.5, "staleness": 1.0}


# --- How it is shown -------------------------------------------------------------------------------------------------


async def busy(store: Store) -> None:
    """Something of everything."""
    await pushed(store, 20)
    held_out = evaluation_tasks(configured(Path("x")), questions(2), 0)
    await store.add_tasks(held_out)
    await works(store, "sampler")
    for _ in range(9):
        await claimed(store, "sampler")
    await works(store, "trainer", waiting_for="samplers to finish 4 groups for step 1", deadline=time.time() + 60)
    await store.put_service(InferenceService(url="http://127.0.0.1:45678", kind="slots", model="m", policy_version=0))
    told = Evaluation(step=0, records=()).told(version=0)
    await store.set_state(EVALUATIONS, {"0": told})
    await store.spend({"calls": 3, "prompt_tokens": 1000, "calls/tool:sum": 2, "calls/tool:lookup": 5, "euros": 0.5})


def text_of(seen: Standing, width: int = 80) -> str:
    """As a pipe gets it, without the spaces at the ends of lines."""
    output = io.StringIO()
    Console(file=output, width=width).print(shown(seen, sentences(seen)), highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in output.getvalue().splitlines())


def test_steps_that_had_fewer_groups_are_shown(tmp_path: Path) -> None:
    seen = standing_of(tmp_path, pushed)
    assert "smaller steps" not in text_of(seen)
    counts = replace(seen.queues[Split.TRAIN], short=3, left_out=8)
    seen = replace(seen, queues={**seen.queues, Split.TRAIN: counts})
    assert "train missing in smaller steps: 3, in steps left out: 8" in text_of(seen)


def gone_pid() -> int:
    """Of a process that has ended."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    return gone.pid


def test_it_fits_80_columns_and_has_no_colours_in_a_pipe(tmp_path: Path) -> None:
    text = text_of(standing_of(tmp_path, busy))
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    for expected in (
        "r: running, in output/r",
        "step 0 of 5, version 0",
        r"train       11        9      -      -        -        -        -          -",
        "and 3 younger ones",
        "http://127.0.0.1:45678  slots  UP           0        0",
        "sampler 7  working",
        "trainer 7  waiting",
        "3 model calls, 1,000 prompt tokens, 7 tool calls (lookup 5, sum 2), 0.5 euros",
        "* trainer 7@far waits for samplers to finish 4 groups for step 1: 0 ready, 4",
    ):
        assert expected in text, text


def test_why_a_run_ended_is_shown_with_its_last_words(tmp_path: Path) -> None:
    async def failed(store: Store) -> None:
        await note_end(store, "failed", "ProcessDied: the trainer died\n    its last words")

    assert "s ago: ProcessDied: the trainer died\n    its last words" in text_of(standing_of(tmp_path, failed))


NUMBER, TEXT = (int, float), str
SCHEMA = {
    "": {
        **dict.fromkeys(("run", "place", "state"), TEXT),
        **dict.fromkeys(("end", "step", "version", "planned_steps", "money"), object),
        **dict.fromkeys(("last_step", "queues", "spending", "budget"), dict),
        **dict.fromkeys(("evaluations", "groups", "services", "workers", "waits"), list),
        **{"at": NUMBER, "streams_ended": bool},
    },
    "queues": {
        **dict.fromkeys(("created", "running", "completed", "empty", "ready", "taken", "trained"), int),
        **{
            "abandoned": dict,
            "dropped": dict,
            "pushed_again": int,
            "fresh_taken": int,
            "charged": int,
            "short": int,
            "left_out": int,
        },
    },
    "groups": {
        **dict.fromkeys(("task", "split", "owner"), TEXT),
        **{"num_slots": int, "num_done": int, "age_seconds": NUMBER},
    },
    "evaluations": {"step": int, "version": int, "success": NUMBER, "records": int, "unscored": int},
    "budget": {"action": TEXT, "limits": dict, "reached": object},
    "services": {
        **dict.fromkeys(("url", "kind", "model", "status", "state", "last_error"), TEXT),
        **{"policy_version": int, "running": int, "age_seconds": NUMBER, "beat": NUMBER},
    },
    "workers": {
        **dict.fromkeys(("id", "kind", "host", "state", "waiting_for"), TEXT),
        **{"pid": int, "alive": bool, "deadline": object, "claims": int, "age_seconds": NUMBER, "beat": NUMBER},
    },
}
"""What programs rely on: a key that is missing here may be added, one that is here stays what it is."""


def test_the_json_keeps_its_keys_and_their_types_and_the_page_lists_them(tmp_path: Path) -> None:
    seen = standing_of(tmp_path, busy)
    told = json.loads(json.dumps(as_json(seen, sentences(seen))))
    assert set(told["queues"]) == {"train", "eval", "test"}
    parts = {
        "": told,
        "queues": told["queues"]["train"],
        "budget": told["budget"],
        **{name: told[name][0] for name in SCHEMA if name not in ("", "queues", "budget")},
    }
    for name, schema in SCHEMA.items():
        assert {key: parts[name][key] for key in schema if not isinstance(parts[name][key], schema[key])} == {}, name
    page = DOCS.read_text(encoding="utf-8")
    missing = [f"{name}: {key}" for name, part in parts.items() for key in part if f"`{key}`" not in page]
    assert missing == []
    assert told["workers"][0] | {"beat": 0, "age_seconds": 0} == {
        **{"id": "sampler", "kind": "sampler", **ELSEWHERE, "waiting_for": "", "deadline": None, "alive": True},
        **{"age_seconds": 0, "beat": 0, "state": "working", "claims": 9},
    }


def test_held_out_success_is_told_of_the_first_the_best_and_the_last_round(tmp_path: Path) -> None:
    async def evaluated(store: Store) -> None:
        await pushed(store)
        rounds = {
            step: {"step": step, "version": step, "success": value} for step, value in ((0, 0.1), (9, 0.7), (10, 0.5))
        }
        await store.set_state(EVALUATIONS, {str(step): told for step, told in rounds.items()})

    seen = standing_of(tmp_path, evaluated)
    assert "held-out success 0.100 at step 0, 0.700 at step 9, 0.500 at step 10\n" in text_of(seen)
    assert "held-out success 0.100 at step 0\n" in text_of(replace(seen, evaluations=seen.evaluations[:1]))
    two = [seen.evaluations[0], seen.evaluations[2]]
    assert "held-out success 0.100 at step 0, 0.500 at step 10\n" in text_of(replace(seen, evaluations=two))


def test_a_crashed_run_is_told_as_one_with_the_way_on_and_its_engine_as_silent(tmp_path: Path) -> None:
    async def crashed(store: Store) -> None:
        await pushed(store)
        await works(store, "trainer", host=socket.gethostname(), pid=gone_pid())
        await store.put_service(InferenceService(url="http://e:1", kind="slots", model="m"))

    seen = standing_of(tmp_path, crashed)
    shown_text = text_of(seen, width=100)
    assert "r: crashed, in output/r" in shown_text
    assert "gone without a word; go on with --run_name r --resume_from_checkpoint auto" in shown_text
    assert "SILENT" in shown_text
    assert as_json(seen, [])["services"][0]["state"] == "SILENT"


def test_watch_looks_again_and_json_is_a_line_each_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(tmp_path)
    with_store(config, pushed)
    found = Found(run="r", url=config.store_url, place="here")

    async def watched() -> None:
        options = StatusOptions(json=True, watch=0.01)
        watching = asyncio.create_task(show(found, options, Console()))
        while len(told) < 3:
            await asyncio.sleep(0.01)
            told.extend(map(json.loads, capsys.readouterr().out.splitlines()))
        watching.cancel()
        await watching

    told: list[Any] = []
    asyncio.run(watched())
    assert {each["queues"]["train"]["created"] for each in told} == {6}
    with pytest.raises(ConfigError, match="--watch: expects seconds above 0, got 0"):
        main(["--watch=0"])


# --- Which run -------------------------------------------------------------------------------------------------------


def a_run(folder: Path, name: str, *flags: str) -> Path:
    config = configured(folder, f"--run_name={name}", *flags)
    config.save(config.folder / "config.yaml")
    with_store(config, lambda store: store.set_state("begun", True))
    return config.folder


def test_a_run_is_found_by_name_by_folder_by_store_and_as_the_newest(tmp_path: Path) -> None:
    a_run(tmp_path, "old")
    new = a_run(tmp_path, "new")
    own = f"sqlite:///{tmp_path / 'shared.db'}"
    apart = a_run(tmp_path, "apart", f"--db_connection_string={own}")
    for path in (tmp_path / "old").iterdir():
        os.utime(path, (1, 1))
    os.utime(apart / "config.yaml", (1, 1))
    options = StatusOptions(output_dir=str(tmp_path))
    assert find_run("", options).run == "new"
    assert find_run("old", options).folder == tmp_path / "old"
    assert find_run(str(new), StatusOptions(output_dir="nowhere")).run == "new"
    assert find_run("apart", options).url == own
    assert find_run("", StatusOptions(db_connection_string=own)).run == "apart"
    (new / "config.yaml").unlink()
    assert (found := find_run("new", options)).run == "new"
    assert found.config is None


def test_a_missing_run_is_an_error_that_lists_those_there_are(tmp_path: Path) -> None:
    options = StatusOptions(output_dir=str(tmp_path))
    with pytest.raises(ConfigError, match=f"no run below {tmp_path}"):
        find_run("", options)
    a_run(tmp_path, "one")
    with pytest.raises(ConfigError, match=f"RUN: no run 'two'; {tmp_path} has one"):
        find_run("two", options)
    url = f"sqlite:///{tmp_path / 'one' / 'run.db'}"
    with pytest.raises(ConfigError, match=r"no run 'two'; sqlite:.* has one"):
        find_run("two", StatusOptions(db_connection_string=url))
    with pytest.raises(ConfigError, match="there is no store at"):
        find_run("", StatusOptions(db_connection_string=f"sqlite:///{tmp_path / 'none.db'}"))
    assert not (tmp_path / "none.db").exists()
    with pytest.raises(ConfigError, match="there is no folder nowhere here: give a run's folder, or --output_dir"):
        find_run("", StatusOptions(output_dir="nowhere"))
    with pytest.raises(ConfigError, match=r"one/run\.db is a file: give the folder of the run"):
        find_run(str(tmp_path / "one" / "run.db"), options)
    (tmp_path / "one" / "run.db").unlink()
    with pytest.raises(ConfigError, match=r"one has a config\.yaml and no run\.db: it ended before it did anything"):
        find_run("one", options)


def test_a_run_whose_configuration_cannot_be_read_is_looked_at_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = a_run(tmp_path, "one")
    with (folder / "config.yaml").open("a") as file:
        file.write("option_of_later: 3\n")
    found = find_run("one", StatusOptions(output_dir=str(tmp_path)))
    assert (found.run, found.config, found.folder) == ("one", None, folder)
    assert "unknown key 'option_of_later'" in caplog.text


def test_looking_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(tmp_path, "one")
    before = (folder / "run.db").read_bytes()
    assert main(["one", f"--output_dir={tmp_path}"]) == 0
    assert "one: idle" in capsys.readouterr().out
    assert (folder / "run.db").read_bytes() == before

    async def write() -> None:
        store = open_store(f"sqlite:///{folder / 'run.db'}", run="one", read_only=True)
        await store.open()
        try:
            await store.set_state("x", 1)
        finally:
            await store.close()

    with pytest.raises(StoreError, match="is open to look at only"):
        asyncio.run(write())


def test_runs_of_a_store_are_listed_newest_first(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    for name in ("first", "second", "first"):
        a_run(tmp_path, name, f"--db_connection_string={url}")
        time.sleep(0.01)
    assert stored_runs(url) == ["first", "second"]
    other = tmp_path / "other.db"
    other.write_bytes(b"no database at all, but a text of some length" * 40)
    with pytest.raises(ConfigError, match=r"cannot read .*other\.db"):
        stored_runs(f"sqlite:///{other}")
