"""Rows of tests/cases/scenarios.md that no room's own tests play, with small fakes; each test names its row."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from rollout_help import Model, a_task, answer, call, play

sys.path.append(str(Path(__file__).resolve().parent.parent / "contract"))

from store_documents import must_claim, publish, record, row, tasks, turn

from agentrl.chat import parse_reply
from agentrl.scoring import MCPScorerFactory
from agentrl.store import Admission
from agentrl.store.sqlite import SqliteStore
from agentrl.types import CallStatus, GroupVerdict, Outcome
from agenttoleap.stats import summarize

DELAYS_SECONDS = (0.0, 0.0, 0.002, 0.02)
AT_ONCE = 50


@pytest.mark.parametrize("finish_reason", ["length", "stop"])
def test_an_unfinished_call_is_not_run_whatever_the_server_says_of_its_end(finish_reason: str) -> None:
    """sc-010"""
    whole = '<tool_call>\n{"name": "rm", "arguments": {"path": "build/old"}}\n</tool_call>'
    for cut in range(whole.index('"build'), whole.index("old") + 3):
        (call,) = parse_reply(whole[:cut], format="qwen", finish_reason=finish_reason).calls
        assert call.status is CallStatus.MALFORMED
        assert call.arguments is None


@pytest.mark.parametrize(
    ("replies", "outcome"), [([call()], Outcome.TURNS_LIMIT), (["hm"], Outcome.NO_ANSWER), ([answer("4")], None)]
)
def test_how_a_rollout_ended_is_never_scored_as_if_it_were_its_answer(
    tmp_path: Path, replies: list[str], outcome: Outcome | None
) -> None:
    """sc-021, sc-018: a scorer that likes everything is asked about answers only."""
    asked: list[str] = []

    def generous(answer: str, truth: str) -> float:
        asked.append(answer)
        return 1.0

    MCPScorerFactory.register_scorer("generous", generous)
    played = play(tmp_path, Model(replies), task=a_task(scorer="generous"), max_turns=3)
    if outcome is None:
        assert (asked, played.record.score, played.record.outcome) == (["4"], 1.0, Outcome.ANSWERED)
    else:
        assert (asked, played.record.score, played.record.outcome) == ([], 0.0, outcome)
        assert played.record.final_answer is None


@pytest.mark.parametrize("interleavings", [100, pytest.param(1_000, marks=pytest.mark.ci)])
def test_two_rollouts_that_finish_at_the_same_moment_finalise_their_group_once(
    tmp_path: Path, interleavings: int
) -> None:
    """sc-045: each of two finishers finalises if it sees both records."""
    chance = random.Random(45)

    async def finish(store: SqliteStore, claim, slot: int) -> bool:
        await asyncio.sleep(chance.choice(DELAYS_SECONDS))
        mine = record(claim, slot, value=float(slot))
        await store.append_turn(claim, turn(mine.id))
        await asyncio.sleep(chance.choice(DELAYS_SECONDS))
        await store.finish_record(claim, mine)
        finished = await store.find("record", task=claim.task.id, status="scored")
        if len(finished) < 2:
            return False
        verdict = GroupVerdict(slots={0: -0.5, 1: 0.5})
        return await store.finalize_group(claim, verdict, [row(claim, each) for each in finished])

    async def main() -> None:
        store = SqliteStore(tmp_path / "run.db", run="run")
        await store.open()
        await store.add_tasks(tasks(interleavings))
        await publish(store, 0)
        everything = Admission(groups_per_step=interleavings, max_staleness=1)
        for _ in range(interleavings // AT_ONCE):
            claims = [await must_claim(store, admission=everything) for _ in range(AT_ONCE)]
            done = await asyncio.gather(*(finish(store, claim, slot) for claim in claims for slot in (0, 1)))
            assert [sum(pair) for pair in zip(done[::2], done[1::2], strict=True)] == [1] * AT_ONCE
        records = await store.find("record")
        assert Counter(each.score for each in records) == {0.0: interleavings, 1.0: interleavings}
        assert await store.count("row") == 2 * interleavings
        await store.close()

    asyncio.run(main())


def test_a_lost_question_stays_in_the_denominator_and_verdicts_with_their_rollout() -> None:
    """sc-055"""
    scores = {"a": [1, 0], "b": [1, 1], "c": [0, "error"], "d": ["error", "error"]}
    report = summarize(scores, k=(1,))
    assert report["errors_count_as_wrong"]["mean"] == 3 / 8
    assert report["finished_only"]["mean"] == 3 / 5
    late = summarize({**scores, "c": [0, 1]}, k=(1,))
    assert late["errors_count_as_wrong"]["mean"] == 4 / 8
