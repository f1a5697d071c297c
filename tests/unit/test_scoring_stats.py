"""pass@k against its definition; sums that do not depend on the order of questions."""

import itertools
import math
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agenttoleap.stats import pass_at_k, summarize


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_rollout(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        outcomes = [1] * c + [0] * (n - c)
        assert pass_at_k(n, c, k) == pytest.approx(mean(max(s) for s in itertools.combinations(outcomes, k)))


@given(st.integers(1, 3000), st.data())
def test_pass_at_k_equals_the_exact_binomials(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    exact = 1 - math.comb(n - c, k) / math.comb(n, k) if n < 200 else None
    got = pass_at_k(n, c, k)
    assert got is not None
    assert 0 <= got <= 1
    assert exact is None or got == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="pass@k needs"):
        pass_at_k(n, c, k)


def test_a_score_that_is_no_number_is_refused_with_its_place() -> None:
    with pytest.raises(ValueError, match="rollout 1 of 'q': a score is a finite number or 'error', got nan"):
        summarize({"q": [1, math.nan]})


def test_questions_with_errors_only_stay_in_the_headline() -> None:
    summary = summarize({"a": [1, 1], "b": ["error", "error"]}, k=(1, 2))
    assert summary["errors"] == 2
    assert summary["errors_count_as_wrong"]["mean"] == 0.5
    assert summary["finished_only"] == {
        "rollouts": 2,
        "questions": 1,
        "mean": 1.0,
        "stderr_clustered": 0.0,
        "stderr_clustered_small_sample": None,
    }
    assert summary["pass_at_k_errors_count_as_wrong"] == {"1": 0.5, "2": 0.5}


def test_nothing_finished_has_no_mean() -> None:
    assert summarize({"a": ["error"]})["finished_only"]["mean"] is None
    assert summarize({})["errors_count_as_wrong"]["mean"] is None


@given(st.dictionaries(st.text(max_size=3), st.lists(st.sampled_from([0, 1, 0.5, "error"]), min_size=1, max_size=4)))
def test_the_order_of_questions_changes_nothing(rollouts: dict[str, list[float | str]]) -> None:
    turned = dict(reversed(rollouts.items()))
    assert summarize(rollouts, k=(1,)) == summarize(turned, k=(1,))
