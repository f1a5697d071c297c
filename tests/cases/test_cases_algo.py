"""Advantages, losses and masks of the case files, one test per case."""

from collections.abc import Callable
from pathlib import Path

import check_cases
import pytest

FOLDER = Path(__file__).parent
NUM_CASES = {"advantages": 68, "losses": 31, "masks": 26}

CASES = [
    pytest.param(run, id=f"{kind}-{name}")
    for kind in NUM_CASES
    for name, run in check_cases.KINDS[kind](FOLDER, set())
]


@pytest.mark.parametrize("run", CASES)
def test_a_case_gives_its_expected_result(run: Callable[[], bool]) -> None:
    assert run()


def test_no_case_is_left_out() -> None:
    assert len(CASES) == sum(NUM_CASES.values())


def test_the_padded_batch_of_the_masks_file_keeps_real_end_tokens() -> None:
    from agentrl.batch import pad_right

    (case,) = [case for case in check_cases.read_jsonl(FOLDER / "masks.jsonl") if case["kind"] == "batch"]
    padded = pad_right(case["rows"], pad_id=case["pad_id"], pad_to=case["pad_to"])
    assert padded.ids_BL.tolist() == case["expected"]["ids"]
    assert padded.attention_mask_BL.tolist() == case["expected"]["attention_mask"]
    assert padded.loss_mask_BL.tolist() == case["expected"]["loss_mask"]
    assert padded.lengths_B.tolist() == case["expected"]["lengths"]
