"""What must hold for any input, beside the cases: every truncation, round trips, large and random inputs."""

import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algo import estimate_advantages
from agentrl.batch import build_tree, segment_turns
from agentrl.chat import parse_reply
from agentrl.scoring import parse_verdict
from agentrl.tasks import TaskFileError, extract_answer, load_tasks
from agentrl.types import CallStatus

CASES = Path(__file__).parent
OK = (CallStatus.OK, CallStatus.UNKNOWN_TOOL)


def rows_of(*names: str) -> list[dict]:
    texts = [(CASES / name).read_text(encoding="utf-8") for name in names]
    return [json.loads(line) for text in texts for line in text.split("\n") if line.strip()]


TEXTS = rows_of("tool_calls.jsonl", "extra_tool_calls.jsonl")
FORMATS = sorted({case["format"] for case in TEXTS})


def good_calls(case: dict, text: str, finish: str) -> list[tuple[str, dict]]:
    """The calls that would run; every other one must say why it does not."""
    reply = parse_reply(
        text,
        format=case["format"],
        finish_reason=finish,
        prompt_ends_in_think=case["prompt_ends_in_think"],
        tools=case.get("tools"),
    )
    assert all(call.reason for call in reply.calls if call.status is not CallStatus.OK)
    return [(call.name, dict(call.arguments or {})) for call in reply.calls if call.status in OK]


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_truncation_of_every_text_is_read_fast_and_calls_nothing_the_whole_would_not(format_name: str) -> None:
    slowest = 0.0
    for case in (case for case in TEXTS if case["format"] == format_name):
        text = case["text"]
        whole = good_calls(case, text, "stop")
        for cut in range(len(text)):
            begun = time.process_time()
            calls = good_calls(case, text[:cut], "length")
            slowest = max(slowest, time.process_time() - begun)
            assert calls == whole[: len(calls)], (case["id"], cut)
            good_calls(case, text[:cut], "stop")
    assert slowest < 0.5


def test_every_truncation_of_every_answer_ends_and_keeps_the_answer_only_when_its_container_is_complete() -> None:
    for case in rows_of("answers.jsonl", "extra_answers.jsonl"):
        for cut in range(len(case["text"])):
            found = extract_answer(
                case["text"][:cut], schema=case["schema"], prompt_ends_in_think=case["prompt_ends_in_think"]
            )
            assert found is None or (found and found == found.strip() and found in case["text"][:cut])


def test_every_truncation_of_every_judge_reply_is_a_verdict_or_none() -> None:
    for case in rows_of("judge_replies.jsonl", "extra_judge_replies.jsonl"):
        for cut in range(len(case["reply"]) + 1):
            verdict = parse_verdict(case["reply"][:cut], protocol=case["protocol"])
            assert verdict in ("correct", "incorrect", None)


def task_files() -> Iterator[Path]:
    for folder in ("task_files", "extra_task_files"):
        yield from sorted(path for path in (CASES / folder).glob("*.json*") if path.name != "expectations.json")


@pytest.mark.parametrize("path", [path for path in task_files() if path.stat().st_size < 5_000], ids=lambda p: p.name)
def test_every_truncation_of_a_task_file_is_loaded_or_refused_by_line(path: Path, tmp_path: Path) -> None:
    content, cut_file = path.read_bytes(), tmp_path / path.name
    for cut in range(len(content)):
        cut_file.write_bytes(content[:cut])
        try:
            tasks = load_tasks(cut_file)
        except TaskFileError as error:
            assert all(1 <= problem.line <= content.count(b"\n") + 1 for problem in error.problems if problem.line)
        else:
            assert len({task.task_id for task in tasks}) == len(tasks) > 0


@given(content=st.binary(max_size=80) | st.text(alphabet='[]{}":,id1\n\\u\ufeffé ', max_size=60).map(str.encode))
@settings(deadline=None)
def test_no_bytes_break_the_loader(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("bytes") / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(TaskFileError, match=r"tasks\.jsonl"):
        load_tasks(path)


UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SOME_TEXT = UNICODE.filter(str.strip)
ANSWERS = SOME_TEXT | st.integers() | st.booleans() | st.lists(SOME_TEXT, min_size=1, max_size=3)
TASK_ROWS = st.lists(
    st.fixed_dictionaries(
        {"id": SOME_TEXT, "query": SOME_TEXT, "answer": ANSWERS},
        optional={"level": st.integers(), "note": UNICODE, "system_prompt": SOME_TEXT},
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda row: row["id"],
)


@given(rows=TASK_ROWS, array=st.booleans(), escaped=st.booleans())
@settings(deadline=None)
def test_a_written_task_file_comes_back(
    rows: list[dict], array: bool, escaped: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lines = [json.dumps(row, ensure_ascii=escaped) for row in rows]
    path = tmp_path_factory.mktemp("rows") / "tasks"
    path.write_bytes((f"[{','.join(lines)}]" if array else "\n".join(lines)).encode())
    tasks = load_tasks(path)
    assert [(task.task_id, task.query, task.answer, task.system_prompt) for task in tasks] == [
        (row["id"], row["query"], row["answer"], row.get("system_prompt")) for row in rows
    ]
    known = ("id", "query", "answer", "system_prompt")
    assert [task.metadata for task in tasks] == [{k: v for k, v in row.items() if k not in known} for row in rows]


LATEX = st.recursive(
    st.sampled_from(["x", "\\frac", "\\{", "\\}", "\\\\", "$", " ", "1,2", "\\left\\{", "\\$", "é"]),
    lambda inner: st.lists(inner, max_size=4).map(lambda parts: "{" + " ".join(parts) + "}"),
    max_leaves=12,
)


@given(
    content=st.lists(LATEX, min_size=1, max_size=4).map(" ".join), before=st.sampled_from(["", "\\boxed{1} or ", "{"])
)
def test_a_box_gives_back_its_content(content: str, before: str) -> None:
    earlier = "1" if "boxed" in before else None
    assert extract_answer(f"{before}$\\boxed{{{content}}}$.", schema="boxed") == (content.strip() or earlier)


@pytest.mark.parametrize("filler", ["x", "\n", "</tool_call>", "</function>\n", "<parameter=b>x", "</parameter>"])
def test_a_megabyte_parameter_of_xml_is_read_and_its_cuts_are_not(filler: str) -> None:
    value = filler * (1_000_000 // len(filler))
    text = f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"
    begun = time.process_time()
    (call,) = parse_reply(text, format="qwen3_coder_xml").calls
    assert (call.name, call.arguments) == ("f", {"a": value})
    for cut in (len(text) // 2, len(text) - 45):
        reply = parse_reply(text[:cut], format="qwen3_coder_xml", finish_reason="length")
        assert [call for call in reply.calls if call.status in OK] == []
    assert time.process_time() - begun < 8


ESTIMATORS = ["mean", "mean_std_ddof0", "mean_std_ddof1", "leave_one_out"]
REWARDS = st.lists(st.one_of(st.none(), st.integers(-8, 8).map(lambda n: n / 4)), max_size=9)


def finite(values: tuple[float | None, ...]) -> list[float]:
    return [value for value in values if value is not None]


@pytest.mark.parametrize("estimator", ESTIMATORS)
@given(rewards=REWARDS, shift=st.integers(-9, 9), data=st.data())
def test_advantages_are_centred_shift_free_and_blind_to_order_and_to_excluded_members(
    estimator: str, rewards: list[float | None], shift: int, data: st.DataObject
) -> None:
    found = estimate_advantages(rewards, estimator=estimator)
    assert [value is None for value in found.values] == [reward is None for reward in rewards]
    assert math.fsum(finite(found.values)) == pytest.approx(0, abs=1e-9)
    shifted = estimate_advantages([None if r is None else r + shift for r in rewards], estimator=estimator)
    assert finite(shifted.values) == pytest.approx(finite(found.values), abs=1e-9)
    order = data.draw(st.permutations(range(len(rewards))))
    permuted = estimate_advantages([rewards[i] for i in order], estimator=estimator)
    assert [permuted.values[order.index(i)] for i in range(len(rewards))] == pytest.approx(list(found.values), abs=1e-9)
    alone = estimate_advantages([r for r in rewards if r is not None], estimator=estimator)
    assert list(alone.values) == pytest.approx(finite(found.values), abs=1e-12)


@given(rewards=st.lists(st.integers(0, 4).map(float), min_size=2, max_size=9))
def test_leave_one_out_is_the_mean_baseline_scaled(rewards: list[float]) -> None:
    mean = estimate_advantages(rewards, estimator="mean").values
    others = estimate_advantages(rewards, estimator="leave_one_out").values
    scale = len(rewards) / (len(rewards) - 1)
    assert list(others) == pytest.approx([scale * (value or 0) for value in mean], abs=1e-12)


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=8)


@given(paths=PATHS, data=st.data())
def test_a_random_tree_holds_every_prefix_once_and_counts_who_trains_it(paths: list[list[int]], data) -> None:
    masks = [data.draw(st.lists(st.integers(0, 1), min_size=len(path), max_size=len(path))) for path in paths]
    tree = build_tree([{"ids": path, "loss_mask": mask} for path, mask in zip(paths, masks, strict=True)])
    prefixes = {tuple(path[: n + 1]) for path in paths for n in range(len(path))}
    ids, parent = list(tree.ids), list(tree.parent)
    trained: dict[tuple[int, ...], int] = dict.fromkeys(prefixes, 0)
    for path, mask in zip(paths, masks, strict=True):
        for n, one in enumerate(mask):
            trained[tuple(path[: n + 1])] += one

    def prefix(node: int) -> tuple[int, ...]:
        return (*(prefix(parent[node]) if parent[node] >= 0 else ()), ids[node])

    found = [prefix(node) for node in range(len(ids))]
    assert sorted(found) == sorted(prefixes)
    assert list(tree.positions) == [len(path) - 1 for path in found]
    assert list(tree.trained_by) == [trained[path] for path in found]
    for path, index in zip(paths, tree.row_index, strict=True):
        assert [found[node] for node in index] == [tuple(path[: n + 1]) for n in range(len(path))]


@given(deltas=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 3)), min_size=1, max_size=6))
def test_turns_train_every_sampled_token_exactly_once(deltas: list[tuple[int, int, int]]) -> None:
    """Each turn goes on from a random earlier one, or begins anew; ids are all different."""
    counter = itertools.count(1)
    turns, contents = [], [[]]
    for context, sampled, origin in deltas:
        prompt = [*contents[origin % len(contents)], *[next(counter) for _ in range(context + 1)]]
        output = [next(counter) for _ in range(sampled)]
        turns.append({"prompt_ids": prompt, "output_ids": output, "logprobs": [-0.5] * sampled})
        contents.append(prompt + output)
    segments = segment_turns(turns)
    trained = [i for s in segments for i, m in zip(s.ids, s.loss_mask, strict=True) if m]
    assert sorted(trained) == sorted(i for turn in turns for i in turn["output_ids"])
