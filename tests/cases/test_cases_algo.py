"""Advantages, losses and masks of the case files, one test per case."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import check_cases
import pytest

FOLDER = Path(__file__).parent
FILES = {"advantages": "advantages.json", "losses": "losses.json", "masks": "masks.jsonl"}
NUM_CASES = {"advantages": 17 * 4, "losses": 31, "masks": 26}
NUM_EXTRA_CASES = {"advantages": 12 * 4, "losses": 14, "masks": 16}


def cases_in(folder: Path) -> list:
    return [
        pytest.param(run, id=f"{kind}-{name}") for kind in FILES for name, run in check_cases.KINDS[kind](folder, set())
    ]


def extra_cases() -> list:
    """Those of ``extra_*``, under the names that the checker knows."""
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES.values():
            shutil.copy(FOLDER / f"extra_{name}", Path(folder) / name)
        return cases_in(Path(folder))


CASES = [*cases_in(FOLDER), *extra_cases()]


@pytest.mark.parametrize("run", CASES)
def test_a_case_gives_its_expected_result(run: Callable[[], bool]) -> None:
    assert run()


def test_no_case_is_left_out() -> None:
    assert len(CASES) == sum(NUM_CASES.values()) + sum(NUM_EXTRA_CASES.values())


def test_the_padded_batch_of_the_masks_file_keeps_real_end_tokens() -> None:
    from agentrl.batch import pad_right

    (case,) = [case for case in check_cases.read_jsonl(FOLDER / "masks.jsonl") if case["kind"] == "batch"]
    padded = pad_right(case["rows"], pad_id=case["pad_id"], pad_to=case["pad_to"])
    assert padded.ids_BL.tolist() == case["expected"]["ids"]
    assert padded.attention_mask_BL.tolist() == case["expected"]["attention_mask"]
    assert padded.loss_mask_BL.tolist() == case["expected"]["loss_mask"]
    assert padded.lengths_B.tolist() == case["expected"]["lengths"]
