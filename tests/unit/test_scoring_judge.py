"""A judge's reply decides clearly or not at all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.scoring import Truth, parse_verdict


@pytest.mark.parametrize(
    ("protocol", "reply", "verdict"),
    [
        ("word", "Correct\n\nThe response may differ in form.", "correct"),
        ("word", "Correct\nIncorrect", None),
        ("word", "The response is not incorrect.", "correct"),
        ("word", "incorrectly labelled", None),
        ("word", "Verdict: Correct\nVerdict: Unknown", None),
        ("word", "The final verdict is: **Incorrect**", "incorrect"),
        ("word", "If it were 4 it would be correct.", None),
        ("yes_no", "correct: yes/no", None),
        ("yes_no", "correct: yes or no", None),
        ("yes_no", "Correct: YES.", "correct"),
        ("yes_no", "correct: no\ncorrect: yes", "correct"),
        ("letter", "**B**", "incorrect"),
        ("letter", "Grade: A or B", None),
        ("json", '{"correct": true} {"correct": false}', "incorrect"),
        ("json", '{"correct": 1}', None),
        ("json", '{"a": {"b": 1}, "correct": "True"}', "correct"),
        ("json", "{" * 10_000, None),
        ("zh", "结论：没有错误", "correct"),
        ("zh", "结论: 正确\n结论: 错误", "incorrect"),
        ("zh", "答案正确", None),
        ("grade", "downgrade: I", None),
        ("grade", "grade: c", None),
        ("word", "</think>Correct", "correct"),
        ("word", "reasoning </think> Incorrect", "incorrect"),
    ],
)
def test_the_reply_gives_this_verdict(protocol: str, reply: str, verdict: str | None) -> None:
    assert parse_verdict(reply, protocol=protocol) == verdict


@given(st.text(max_size=200), st.sampled_from(["word", "yes_no", "letter", "json", "zh", "grade"]))
def test_any_text_gives_one_of_three_results(reply: str, protocol: str) -> None:
    assert parse_verdict(reply, protocol=protocol) in ("correct", "incorrect", None)


def test_an_unknown_protocol_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="unknown judge protocol 'words'; known: word, yes_no"):
        parse_verdict("Correct", protocol="words")


def test_truth_is_the_answer_as_text_and_the_task_as_a_mapping() -> None:
    truth = Truth(42, query="6 x 7?", metadata={"level": 1})
    assert truth == "42"
    assert truth == 42
    assert truth != "43"
    assert f"{truth}" == "42"
    assert float(truth) == 42.0
    assert truth["answer"] == 42
    assert truth["query"] == "6 x 7?"
    assert truth.get("level", "none") == "none"
    assert dict(truth) == {"query": "6 x 7?", "answer": 42, "metadata": {"level": 1}}
    assert "answer" in truth
    assert {truth: 1}["42"] == 1
