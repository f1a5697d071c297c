"""A scorer that misbehaves in any way makes an answer unscored, with the reason, and hurts nobody else."""

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest
import scoring_samples

from agentrl.errors import ConfigError
from agentrl.scoring import MCPScorerFactory, load_scorer_module, pool, require_scorer, score_answer
from agentrl.scoring import score as score_module
from agentrl.scoring.pool import Job, shared_pool
from agentrl.types import Score


def score(scorer: Any, answer: str | None, truth: Any = "42", **options: Any) -> Score:
    return asyncio.run(score_answer(scorer, answer, truth, **options))


@pytest.mark.parametrize(
    ("scorer", "answer", "truth", "value"),
    [
        ("exact", "Paris.", "paris", 1.0),
        ("exact", "Pari", "paris", 0.0),
        ("exact", "0", 0, 1.0),
        ("exact", "False", False, 1.0),
        ("contains", "It is 10 km", "0", 0.0),
        ("contains", "It is 10 km", "10 km", 1.0),
        ("numeric", "about 3.1415927 or so", "3.14159265", 1.0),
        ("numeric", "1000001", "1000000", 0.0),
        ("numeric", "$1,200", 1200, 1.0),
        ("numeric", "12 or 13", 12, 0.0),
        ("numeric", "50%", "0.5", 1.0),
        ("math", "\\frac{1}{2}", "0.5", 1.0),
        ("math", "2\\sqrt{3}", "\\sqrt{12}", 1.0),
        ("math", "3\\sqrt{3}", "\\sqrt{12}", 0.0),
        ("math", "7", ["5", "7"], 1.0),
        ("exact", "no", ["yes", "maybe"], 0.0),
    ],
)
def test_built_in_scorers_give_the_value(scorer: str, answer: str, truth: Any, value: float) -> None:
    assert score(scorer, answer, truth) == Score(value=value, scorer=scorer)


def test_f1_is_the_overlap_of_words() -> None:
    found = score("f1", "the cat sat", "the cat")
    assert found.value == pytest.approx(0.8)
    assert found.detail == {"precision": pytest.approx(2 / 3), "recall": 1.0}
    assert score("f1", "北京市", "北京").value == pytest.approx(0.8)


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_no_answer_scores_zero_without_running_the_scorer(answer: str | None) -> None:
    assert score("scoring_samples:exits", answer) == Score(
        value=0.0, reason="no answer", scorer="scoring_samples:exits"
    )


@pytest.mark.parametrize("truth", [None, "", [], [None, " "]])
def test_a_missing_truth_is_unscored(truth: Any) -> None:
    found = score("exact", "42", truth)
    assert (found.value, found.reason) == (None, "the task has no answer to compare with")


def test_the_scorer_none_gives_no_score() -> None:
    assert score("none", "42").value is None
    assert not MCPScorerFactory.needs_truth("none")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sleeps", "did not finish within 1 s; its process was killed"),
        ("spins", "did not finish within 1 s; its process was killed"),
        ("exits", "exit code 7"),
        ("exits_politely", "exit code 3"),
        ("kills_itself", "signal SIGKILL"),
        ("crashes", "KeyError: 'no such thing'"),
        ("returns_nan", "returned nan"),
        ("returns_text", "returned '1.0' (str), not a number"),
        ("returns_none", "returned None (NoneType), not a number"),
        ("sleeps_asynchronously", "did not finish within 1 s; it was cancelled"),
    ],
)
def test_a_bad_scorer_leaves_the_answer_unscored_and_says_why(name: str, reason: str) -> None:
    started = time.monotonic()
    found = score(f"scoring_samples:{name}", "42", deadline_seconds=1.0)
    assert found.value is None
    assert reason in found.reason
    assert name in found.reason
    assert time.monotonic() - started < 15


def test_a_scorer_may_print_what_it_likes() -> None:
    assert score("scoring_samples:prints", "42").value == 1.0


def test_a_killed_scorer_takes_its_children_along(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    assert score("scoring_samples:leaves_a_child", str(file), deadline_seconds=1.5).value is None
    child = int(file.read_text())
    for _ in range(100):
        if not alive(child):
            return
        time.sleep(0.02)
    pytest.fail(f"the scorer's child {child} lives on")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_scorer_sees_query_metadata_and_config() -> None:
    found = score("scoring_samples:with_config", "x", question="why?", metadata={"level": 3}, config={"score": 0.25})
    assert (found.value, found.detail) == (0.25, {"query": "why?", "level": 3})


def test_a_function_nobody_can_import_runs_in_a_thread_with_a_deadline() -> None:
    here = os.getpid()
    assert score(lambda answer, truth: os.getpid() == here and answer == truth, "42").value == 1.0
    assert "left behind" in score(lambda answer, truth: time.sleep(5), "42", deadline_seconds=0.1).reason
    assert "SystemExit" in score(lambda answer, truth: exec("raise SystemExit(1)"), "42").reason


def test_a_registered_function_that_can_be_imported_runs_in_another_process() -> None:
    MCPScorerFactory.register_scorer("dies", scoring_samples.exits)
    assert "exit code 7" in score("dies", "42").reason
    assert "dies" in MCPScorerFactory.names()


def test_asynchronous_scorers_run_side_by_side() -> None:
    async def many() -> list[Score]:
        return list(
            await asyncio.gather(*(score_answer("scoring_samples:asynchronous", "42", "42") for _ in range(50)))
        )

    started = time.monotonic()
    assert all(found.value == 1.0 for found in asyncio.run(many()))
    assert time.monotonic() - started < 5


def test_fifty_mixed_scores_at_once_each_get_their_own_result() -> None:
    kinds = [("exact", 1.0), ("math", 1.0), ("scoring_samples:equal", 1.0), ("scoring_samples:asynchronous", 1.0),
             ("scoring_samples:crashes", None)]  # fmt: skip

    async def many() -> list[Score]:
        jobs = [score_answer(kinds[i % 5][0], rf"\sqrt{{{i}}}+x", rf"\sqrt{{{i}}}+x") for i in range(50)]
        return list(await asyncio.gather(*jobs))

    assert [found.value for found in asyncio.run(many())] == [kinds[i % 5][1] for i in range(50)]


SLEEPING = Job(targets=("time:sleep",), arguments=(60,), deadline_seconds=0.3)


@pytest.mark.parametrize(("processor_seconds", "value"), [(0.3, 0.0), (0.0, None)], ids=["hard", "starved"])
def test_a_comparison_past_its_deadline_scores_zero_unless_the_machine_was_busy(
    monkeypatch: pytest.MonkeyPatch, processor_seconds: float, value: float | None
) -> None:
    used = iter([0.0, processor_seconds])
    monkeypatch.setattr(pool, "processor_seconds", lambda pid: next(used))
    monkeypatch.setattr(score_module, "algebra_job", lambda *_: SLEEPING)
    found = score("math", r"\sqrt{5}+x", r"\sqrt{7}+x")
    assert found.value == value
    assert "within 0.3 s" in found.detail.get("undecided", "") + found.reason


def test_a_comparison_that_is_refused_scores_zero_and_says_so() -> None:
    found = score("math", "9!!!!", r"\sqrt{7}")
    assert (found.value, found.detail) == (0.0, {"undecided": "a factorial too large to write down"})


def test_restarts_are_counted_and_the_next_job_has_a_fresh_process() -> None:
    before = shared_pool("scorers").restarts
    assert score("scoring_samples:exits", "42").value is None
    assert score("scoring_samples:equal", "42").value == 1.0
    assert shared_pool("scorers").restarts == before + 1


def test_a_crash_on_one_accepted_truth_is_not_a_zero() -> None:
    def picky(answer: str, truth: str) -> float:
        if truth == "a":
            raise ValueError("cannot read a")
        return float(answer == truth)

    assert score(picky, "b", ["a", "b"]).value == 1.0
    assert score(picky, "c", ["a", "b"]).value is None


def test_an_unknown_scorer_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown scorer 'exakt'; did you mean 'exact'\? known: math, exact"
    ) as error:
        score("exakt", "42")
    assert error.value.setting == "scorer"


@pytest.mark.parametrize("name", ["agentcpm", "asearcher", "llm_judge"])
def test_judges_are_known_but_refused_when_a_run_uses_them(name: str) -> None:
    assert MCPScorerFactory.needs_truth(name)
    with pytest.raises(ConfigError, match=r"needs scorer_agent.*exact, math"):
        require_scorer(name)


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        ("no_such_module:fn", "cannot be imported: ModuleNotFoundError"),
        ("scoring_samples:nothing", "has no 'nothing'"),
        ("scoring_samples:math", "is a module, not a function"),
        ("scoring_samples:three_or_nothing", r"takes \(answer, truth\)"),
        ([{"exact": 1}], "a scorer is a name"),
        ("tool:judge", "not supported yet"),
    ],
)
def test_a_scorer_that_cannot_work_is_refused_before_the_run(scorer: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_scorer(scorer)


def test_names_that_are_built_in_cannot_be_taken() -> None:
    with pytest.raises(ConfigError, match="cannot be registered"):
        MCPScorerFactory.register_scorer("math", scoring_samples.equal)


def test_a_scorer_may_say_that_it_needs_no_truth() -> None:
    assert not MCPScorerFactory.needs_truth("scoring_samples:untrue")
    assert score("scoring_samples:untrue", "four", None).value == 4.0


def test_a_scorer_module_is_imported_or_the_error_names_the_option() -> None:
    load_scorer_module("")
    load_scorer_module("scoring_samples")
    with pytest.raises(ConfigError, match="--scorer_module: 'missing_module' cannot be imported"):
        load_scorer_module("missing_module")
