"""The budget of a run: how commands take it, what they tell of it, and what they refuse."""

import io
import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from cli_help import ANSWER, CALL, Played, configured, play, questions, with_store
from rich.console import Console

from agentrl.cli.evaluate import configured as evaluation_of
from agentrl.cli.feed import training_tasks
from agentrl.cli.node import supervised_node
from agentrl.cli.preflight import check_before_start
from agentrl.cli.report import warnings
from agentrl.cli.standing import as_json, look
from agentrl.cli.standing_view import shown
from agentrl.cli.start_screen import start_screen
from agentrl.cli.train import source_options
from agentrl.cli.view import MetricsTail, RunView
from agentrl.config.budget import BUDGET_REACHED
from agentrl.errors import ConfigError, Interrupted, ProcessDied, WaitTimeout
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.store import BlockingStore, Store, open_store
from agentrl.telemetry import JsonlSink, Telemetry
from agentrl.trainer.progress import Progress
from agentrl.trainer.source import StoreBatchSource
from agentrl.types import Split, WeightVersion, Worker

PRICES = """
currency = "EUR"
[models.train-model]
per_call = 0.5
[tools.sum]
per_call = 0.25
"""
ONE_AFTER_THE_OTHER = ("--max_concurrent_samples_per_process=2", "--groups_per_step=100")


def prices(folder: Path) -> str:
    (folder / "prices.toml").write_text(PRICES)
    return f"--prices={folder / 'prices.toml'}"


def ends(played: Played) -> Counter[str]:
    """Training groups by what became of them."""
    tasks = (task for task in played.tasks if task.split is Split.TRAIN)
    return Counter(f"{task.status} {task.reason}".strip() for task in tasks)


def with_tools(record: str, turn: int) -> str:
    """A call, then an answer; odd slots are right."""
    if turn == 0:
        return CALL
    return ANSWER if int(record.split("/")[-2]) % 2 else "<answer>0</answer>"


# --- What the options do ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "num_played"),
    [
        ("", 6),
        ("calls=9", 3),
        ("tool_calls=3", 2),
        ("tool_calls/sum=5", 3),
        ("tokens=1", 1),
        ("sampled_tokens=1,calls=1000", 1),
        ("prompt_tokens=1e6", 6),
    ],
)
def test_budget_ends_sampling_at_its_limit(tmp_path: Path, budget: str, num_played: int) -> None:
    """A group is two episodes of two model calls and one tool call each; a group under way is finished."""
    flags = [f"--budget={budget}", *ONE_AFTER_THE_OTHER]
    played = play(tmp_path, *flags, say=with_tools, train=questions(6))
    left = {"abandoned budget": 6 - num_played} if num_played < 6 else {}
    assert ends(played) == {"completed": num_played} | left


def test_evaluation_is_counted_and_played_whatever_is_left(tmp_path: Path) -> None:
    """Two held-out episodes, which are played first, use up what one of the training groups would have had."""
    flags = ["--budget=calls=6", *ONE_AFTER_THE_OTHER]
    alone = play(tmp_path / "alone", *flags, say=with_tools, train=questions(6))
    beside = play(tmp_path / "beside", *flags, say=with_tools, train=questions(6), held_out=questions(2))
    assert (ends(alone)["completed"], ends(beside)["completed"]) == (2, 1)
    nothing_left = play(
        tmp_path / "none", "--budget=calls=1", *ONE_AFTER_THE_OTHER, train=questions(6), held_out=questions(4)
    )
    assert ends(nothing_left) == {"abandoned budget": 6}
    assert len(nothing_left.records) == 4


def test_prices_say_what_was_spent_and_let_money_be_limited(tmp_path: Path) -> None:
    flags = [prices(tmp_path), "--budget=money=4", *ONE_AFTER_THE_OTHER]
    played = play(tmp_path, *flags, say=with_tools, train=questions(6))
    assert ends(played) == {"completed": 2, "abandoned budget": 4}
    without_limit = configured(tmp_path, prices(tmp_path))

    async def spent(store: Store) -> Any:
        return as_json(await look(store, place="", folder=None, config=without_limit), [])["money"]

    assert with_store(without_limit, spent) == pytest.approx(2 * 2 * (2 * 0.5 + 0.25))


@pytest.mark.parametrize(
    ("action", "found"),
    [
        ("stop", {"completed": 2, "abandoned budget": 4}),
        ("pause", {"completed": 2, "created": 4}),
        ("warn", {"completed": 6}),
    ],
)
def test_budget_action_decides_what_follows_at_the_limit(tmp_path: Path, action: str, found: dict[str, int]) -> None:
    flags = ["--budget=calls=3", f"--budget_action={action}", *ONE_AFTER_THE_OTHER]
    assert ends(play(tmp_path, *flags, train=questions(6))) == found


# --- What is told ----------------------------------------------------------------------------------------------------


def text_of(printed: Any) -> str:
    output = io.StringIO()
    Console(file=output, width=100).print(printed, highlight=False)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines())


def test_status_shows_what_was_used_and_what_followed(tmp_path: Path) -> None:
    config = configured(tmp_path, "--budget=calls=40,money=30", prices(tmp_path))

    async def scenario(store: Store) -> tuple[Any, Any, Any]:
        await store.spend({"calls": 10, "calls/tool:sum": 4})
        before = await look(store, place="", folder=None, config=config)
        await store.set_state(BUDGET_REACHED, {"used_up": "40 of 40 model calls", "action": "stop", "at": 5.0})
        after = await look(store, place="", folder=None, config=config)
        return text_of(shown(before, [])), text_of(shown(after, [])), as_json(after, [])

    before, after, told = with_store(config, scenario)
    assert "Spent\n  6.00 EUR, 10 model calls, 4 tool calls (sum 4)" in before
    assert "Budget\n  10 of 40 model calls (25%), 6.00 of 30.00 EUR (20%); then stop" in before
    assert "Budget\n  10 of 40 model calls (25%), 6.00 of 30.00 EUR (20%)\n  the budget is used up (40 of 40" in after
    assert told["money"] == 6.0
    assert told["budget"] == {
        "action": "stop",
        "limits": {"calls": {"limit": 40.0, "used": 10.0}, "money": {"limit": 30.0, "used": 6.0}},
        "reached": {"used_up": "40 of 40 model calls", "action": "stop", "at": 5.0},
    }


def test_status_without_the_file_of_prices_leaves_money_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = configured(tmp_path, "--budget=calls=40,money=30", prices(tmp_path))
    (tmp_path / "prices.toml").unlink()

    async def scenario(store: Store) -> Any:
        return as_json(await look(store, place="", folder=None, config=config), [])

    told = with_store(config, scenario)
    assert (told["money"], list(told["budget"]["limits"])) == (None, ["calls"])
    assert "prices.toml cannot be read: No such file or directory; money is left out" in caplog.text


def test_the_start_screen_shows_the_limits(tmp_path: Path) -> None:
    config = configured(tmp_path, "--budget=tokens=2e6,money=20", prices(tmp_path), "--budget_action=pause")
    (line,) = [line for line in start_screen(config, questions(3), []) if line.startswith("budget")]
    assert line == "budget     2,000,000 tokens, 20.00 EUR; then pause"
    assert not [line for line in start_screen(configured(tmp_path), questions(3), []) if line.startswith("budget")]


def test_whoever_watches_the_run_is_told(tmp_path: Path) -> None:
    path, output = tmp_path / "metrics.jsonl", io.StringIO()
    telemetry = Telemetry([JsonlSink(path)])
    with RunView(Console(file=output, width=100), MetricsTail(path, from_end=True), max_steps=3) as view:
        telemetry.event("budget", text="the budget is used up (4 of 3 model calls): no further group")
        view.refresh()
    assert "the budget is used up (4 of 3 model calls): no further group" in output.getvalue()


def test_the_report_says_that_the_budget_ended_the_run(tmp_path: Path) -> None:
    config = configured(tmp_path)

    async def scenario(store: Store) -> list[str]:
        await store.publish_version(WeightVersion(version=0, step=0, parent=None))
        await store.add_tasks(training_tasks(config, questions(5)))
        await store.set_state(BUDGET_REACHED, {"used_up": "4 of 3 model calls", "action": "stop", "at": 5.0})
        await store.set_aside(Split.TRAIN, "budget")
        return await warnings(config, store)

    assert with_store(config, scenario) == ["the budget is used up (4 of 3 model calls), so 5 groups were not played"]


# --- What is refused -------------------------------------------------------------------------------------------------


def test_a_limit_of_a_tool_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--budget: tool_calls/summ: there is no tool 'summ'; did you mean sum\?"):
        play(tmp_path, "--budget=tool_calls/summ=5")


def test_a_file_of_prices_that_cannot_be_used_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = configured(tmp_path, f"--prices={tmp_path / 'none.toml'}")
    with pytest.raises(ConfigError, match=r"--prices: .*none\.toml cannot be read"):
        check_before_start(config)


def test_an_evaluation_takes_no_budget_and_leaves_that_of_its_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--budget: held-out tasks are played whatever they cost"):
        evaluation_of(["--budget=calls=3"])
    trained = configured(tmp_path, "--budget=calls=3", "--budget_action=pause")
    trained.save(trained.folder / "config.yaml")
    flags = [f"--output_dir={tmp_path}", f"--model_name_or_path={TINY_MODEL_DIR}"]
    assert evaluation_of(["r", *flags]).read_budget().limits == {}


# --- Processes that were started alone -------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["pause", "stop"])
def test_a_trainer_started_alone_ends_when_the_budget_paused_its_samplers(tmp_path: Path, action: str) -> None:
    """Only a pause leaves it nothing to wait for: after a stop the stream ends by itself."""
    config = configured(tmp_path, "--wait_timeout=4", "--sampler_timeout=60")
    config.folder.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    with BlockingStore(open_store(config.store_url, run="r")) as store:
        store.call(store.store.publish_version, WeightVersion(version=0, step=0, parent=None))
        sampler = Worker(id="sampler/h/1", kind="sampler", host="h", pid=1)
        store.call(store.store.heartbeat, sampler)
        source = StoreBatchSource(store, source_options(config), stop=stop)

        def paused() -> None:
            store.call(store.store.set_state, BUDGET_REACHED, {"used_up": "4 of 3 calls", "action": action, "at": 5.0})
            store.call(store.store.leave, sampler.id)

        threading.Timer(1.0, paused).start()
        try:
            with nullcontext() if action == "pause" else pytest.raises(WaitTimeout):
                assert source.next(Progress()) is None
        finally:
            source.close()
    assert stop.is_set() == (action == "pause")


def test_a_node_that_the_budget_paused_is_no_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "stand-in" / "agentrl"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def ended_with(code: int) -> None:
        (package / "__main__.py").write_text(f"raise SystemExit({code})")
        stop = threading.Event()
        with contextmanager(supervised_node)(configured(tmp_path), stop):
            assert stop.wait(20)
            raise Interrupted("stopped after step 3")

    with pytest.raises(Interrupted, match="stopped after step 3"):
        ended_with(130)
    with pytest.raises(ProcessDied, match="the node process ended with exit code 1"):
        ended_with(1)
