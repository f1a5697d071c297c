"""Random turn trees: whatever the sharing and the budget, the same predictions with the same weights are trained."""

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.algo import LossInputs, build_loss
from agentrl.batch import MicroBatch, SampleError, StepPlan, plan_step, segment_turns
from agentrl.batch.paths import chains, row_paths
from agentrl.config import AlgoOptions, OptimOptions
from agentrl.types import DBRecordData, MaskCause, TurnSpan

GRPO = AlgoOptions()
OPTIM = OptimOptions(max_tokens=1000, max_tokens_per_microbatch=1000)


def make_row(slot: int, turns: Sequence[tuple[int, list[int], list[int], int]], advantage: float = 1.0) -> DBRecordData:
    """A row of turns (parent, delta ids, sampled ids, mask code of the sampled)."""
    ids: list[int] = []
    mask: list[int] = []
    spans = []
    for index, (parent, delta, sampled, code) in enumerate(turns):
        start = len(ids)
        ids += delta + sampled
        mask += [0] * len(delta) + [code] * len(sampled)
        spans.append(
            TurnSpan(
                start=start, end=len(ids), parent=parent, advantage=advantage + index / 8, temperature=1 + slot / 16
            )
        )
    trained = [code == MaskCause.SAMPLED for code in mask]
    return DBRecordData(
        record=f"t/{slot}/0",
        task="t",
        seq=0,
        slot=slot,
        token_ids=ids,
        mask=mask,
        behavior_logprobs=[-(slot + 1) - i / 64 if t else math.nan for i, t in enumerate(trained)],
        versions=[(slot + i) % 3 if t else -1 for i, t in enumerate(trained)],
        turns=tuple(spans),
        start_version=0,
        end_version=2,
    )


def plan(rows: Sequence[DBRecordData], *, options: AlgoOptions = GRPO, optim: OptimOptions = OPTIM, **more) -> StepPlan:
    return plan_step(rows, options=options, optim=optim, step_of_version=lambda version: 10 * version, step=20, **more)


@st.composite
def random_rows(draw: st.DrawFn) -> list[DBRecordData]:
    """Few different ids, so that siblings share prompts, sampled tokens and whole turns by chance."""
    ids = st.lists(st.integers(0, 2), max_size=4)
    codes = st.sampled_from([MaskCause.SAMPLED] * 4 + [MaskCause.NO_LOGPROB, MaskCause.CANCELLED])
    rows = []
    for slot in range(draw(st.integers(1, 5))):
        turns = []
        for index in range(draw(st.integers(1, 5))):
            parent = draw(st.integers(max(-1, index - 2), index - 1))
            turns.append((parent, draw(ids), draw(ids), int(draw(codes))))
        rows.append(make_row(slot, turns, advantage=draw(st.sampled_from([-1.0, 0.0, 1.0]))))
    return rows


Prediction = tuple[tuple[int, ...], int, float, int, int, float, float, float, bool]


def expected_predictions(rows: Sequence[DBRecordData], max_tokens: int = 1000) -> list[Prediction]:
    """Read off the turn trees, one token at a time, with the token-mean weight."""
    found = []
    for row in rows:
        contexts: list[list[int]] = []
        for span in row.turns:
            context = list(contexts[span.parent]) if span.parent >= 0 else []
            over_long = len(context) + span.end - span.start > max_tokens
            sampled = [i for i in range(span.start, span.end) if row.mask[i] == MaskCause.SAMPLED]
            pure = len({row.versions[i] for i in sampled}) == 1
            for i in range(span.start, span.end):
                if i in sampled and context and not over_long:
                    facts = (tuple(context), row.token_ids[i], row.behavior_logprobs[i], row.versions[i])
                    found.append((*facts, 20 - 10 * row.versions[i], span.advantage, span.temperature, pure))
                context.append(row.token_ids[i])
            contexts.append(context)
    return [(*facts, 1 / len(found), temperature, pure) for *facts, temperature, pure in found]


def planned_predictions(microbatches: Sequence[MicroBatch]) -> list[Prediction]:
    return [prediction for micro in microbatches for prediction in predictions_of(micro)]


def predictions_of(micro: MicroBatch) -> list[Prediction]:
    """What each prediction sees, by the visibility rule alone."""
    size = len(micro.token_ids_U)
    found = []
    for t, q in enumerate(micro.source_T):
        visible = [k for k in range(size) if k <= q < micro.subtree_end_U[k]]
        assert micro.positions_U[visible].tolist() == list(range(len(visible)))
        found.append(
            (tuple(micro.token_ids_U[visible].tolist()), int(micro.targets_T[t]), float(micro.behavior_logprobs_T[t]),
             int(micro.versions_T[t]), int(micro.age_T[t]), float(micro.advantages_T[t]), float(micro.weights_T[t]),
             float(micro.temperature_T[t]), bool(micro.pure_T[t]))
        )  # fmt: skip
    return found


def rounded(predictions: Sequence[Prediction]) -> Counter:
    return Counter(tuple(round(x, 5) if isinstance(x, float) else x for x in p) for p in predictions)


@settings(max_examples=150, deadline=None)
@given(
    rows=random_rows(),
    sharing=st.sampled_from(["tree", "turns", "none"]),
    budget=st.integers(1, 40),
    max_tokens=st.sampled_from([6, 1000]),
)
def test_every_layout_trains_the_predictions_of_the_turn_trees(
    rows: list[DBRecordData], sharing: str, budget: int, max_tokens: int
) -> None:
    optim = dataclasses.replace(OPTIM, max_tokens=max_tokens)
    planned = plan(rows, optim=optim, prefix_sharing=sharing, max_tokens_per_microbatch=budget)
    assert rounded(planned_predictions(planned.microbatches)) == rounded(expected_predictions(rows, max_tokens))
    for micro in planned.microbatches:
        assert len(micro.token_ids_U) <= budget or len(np.unique(micro.segments_T)) == 1
        assert (micro.subtree_end_U > np.arange(len(micro.token_ids_U))).all()


@settings(max_examples=60, deadline=None)
@given(rows=random_rows())
def test_a_tree_holds_every_distinct_prefix_once(rows: list[DBRecordData]) -> None:
    paths = [p.token_ids_L.tolist() for i, row in enumerate(rows) for p in row_paths(row, index=i, max_tokens=99).paths]
    prefixes = {tuple(path[: n + 1]) for path in paths for n in range(len(path))}
    results = plan(rows).metrics
    assert results["batch/unique_tokens"].result == len(prefixes)
    assert results["batch/row_tokens"].result == sum(map(len, paths))
    unfolded = plan(rows, prefix_sharing="none").microbatches
    assert sum(len(micro.token_ids_U) for micro in unfolded) == sum(map(len, paths))


@settings(max_examples=40, deadline=None)
@given(
    rows=random_rows(),
    loss=st.sampled_from(["GRPO", "GSPO", "MINIRL", "CISPO", "DR_GRPO"]),
    token_level=st.booleans(),
    budgets=st.tuples(st.integers(1, 30), st.integers(1, 30)),
)
def test_every_layout_and_split_gives_the_same_gradient(
    rows: list[DBRecordData], loss: str, token_level: bool, budgets: tuple[int, int]
) -> None:
    options = dataclasses.replace(GRPO, loss_calculater=loss, token_level_loss=token_level, loss_constant=8)
    layouts = [("tree", 1000), ("tree", budgets[0]), ("turns", budgets[1]), ("none", budgets[0])]
    gradients = [gradient(rows, options, sharing, budget) for sharing, budget in layouts]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-5)


def gradient(rows: Sequence[DBRecordData], options: AlgoOptions, sharing: str, budget: int) -> torch.Tensor:
    """Of a toy policy whose log-prob depends on target and depth."""
    theta = torch.linspace(-1, 1, 3 * 64, dtype=torch.float64).reshape(64, 3).sin().requires_grad_()
    for micro in plan(rows, options=options, prefix_sharing=sharing, max_tokens_per_microbatch=budget).microbatches:
        depth = torch.tensor(micro.positions_U[micro.source_T])
        logprobs = torch.log_softmax(theta, dim=1)[depth, torch.tensor(micro.targets_T)]
        out = build_loss(options)(
            LossInputs(
                logprobs=logprobs,
                behavior_logprobs=torch.tensor(micro.behavior_logprobs_T).clamp(min=-2).double(),
                advantages=torch.tensor(micro.advantages_T).double(),
                weights=torch.tensor(micro.weights_T).double(),
                segments=torch.tensor(micro.segments_T),
                age=torch.tensor(micro.age_T),
            )
        )
        out.loss.backward()
    return torch.zeros_like(theta) if theta.grad is None else theta.grad


def test_siblings_that_sampled_the_same_turn_share_its_tokens_and_train_it_each_with_its_advantage() -> None:
    rows = [make_row(slot, [(-1, [1, 2], [7, 8], 1)], advantage=a) for slot, a in enumerate([1.0, -1.0])]
    (micro,) = plan(rows).microbatches
    assert micro.token_ids_U.tolist() == [1, 2, 7]
    assert micro.source_T.tolist() == [1, 2, 1, 2]
    assert micro.targets_T.tolist() == [7, 8, 7, 8]
    assert micro.advantages_T.tolist() == [1.0, 1.0, -1.0, -1.0]
    assert micro.weights_T.tolist() == [0.25] * 4
    assert micro.segments_T.tolist() == [0, 0, 1, 1]


def test_a_tree_over_the_budget_is_cut_at_a_branch_point_and_repeats_the_prefix() -> None:
    rows = [make_row(slot, [(-1, [1, 1, 1, 1], [5 + slot, 8, 8], 1)]) for slot in range(4)]
    planned = plan(rows, max_tokens_per_microbatch=8)
    assert [micro.token_ids_U.tolist() for micro in planned.microbatches] == [
        [1, 1, 1, 1, 5, 8, 6, 8],
        [1, 1, 1, 1, 7, 8, 8, 8],
    ]
    assert planned.metrics["batch/over_budget"].result == 0


def test_a_path_longer_than_the_budget_gets_a_micro_batch_of_its_own_and_is_counted() -> None:
    rows = [make_row(0, [(-1, [1] * 9, [2], 1)]), make_row(1, [(-1, [2], [2], 1)])]
    planned = plan(rows, max_tokens_per_microbatch=4)
    assert [len(micro.token_ids_U) for micro in planned.microbatches] == [9, 1]
    assert planned.metrics["batch/over_budget"].result == 1


def test_small_trees_are_packed_together() -> None:
    rows = [make_row(slot, [(-1, [slot + 3] * length, [9], 1)]) for slot, length in enumerate([6, 4, 3, 5, 2])]
    planned = plan(rows, max_tokens_per_microbatch=10)
    assert [len(micro.token_ids_U) for micro in planned.microbatches] == [10, 10]


def test_turns_that_end_beyond_the_limit_are_counted_and_leave_the_denominator() -> None:
    row = make_row(0, [(-1, [1, 2], [3], 1), (0, [4, 4], [5, 5], 1), (0, [6], [7], 1)])
    planned = plan([row], optim=dataclasses.replace(OPTIM, max_tokens=5))
    assert sorted(t for micro in planned.microbatches for t in micro.targets_T) == [3, 7]
    assert planned.metrics["batch/over_long"].result == 1
    assert planned.microbatches[0].weights_T.tolist() == [0.5, 0.5]


def test_rows_without_trained_tokens_still_count_in_the_number_of_sequences() -> None:
    rows = [make_row(0, [(-1, [1], [2, 3], 1)]), make_row(1, [(-1, [1], [2], int(MaskCause.CANCELLED))])]
    (micro,) = plan(rows, options=dataclasses.replace(GRPO, token_level_loss=False)).microbatches
    assert micro.weights_T.tolist() == [0.25, 0.25]


def test_nothing_to_train_gives_no_micro_batch() -> None:
    assert plan([]).microbatches == ()
    assert plan([make_row(0, [(-1, [1], [2], int(MaskCause.NO_LOGPROB))])]).microbatches == ()


def test_ranks_are_filled_up_with_batches_of_weight_zero() -> None:
    planned = plan([make_row(0, [(-1, [1], [2], 1)])], num_ranks=4)
    assert len(planned.microbatches) == 4
    assert [float(micro.weights_T.sum()) for micro in planned.microbatches] == [1.0, 0.0, 0.0, 0.0]


def test_a_step_that_one_rank_would_run_at_once_is_spread_over_the_ranks() -> None:
    rows = [make_row(slot, [(-1, [10 + slot] * 8, [slot] * 4, 1)]) for slot in range(6)]
    assert len(plan(rows, max_tokens_per_microbatch=1000).microbatches) == 1
    for num_ranks in (2, 3):
        planned = plan(rows, max_tokens_per_microbatch=1000, num_ranks=num_ranks)
        sizes = [len(micro.token_ids_U) for micro in planned.microbatches]
        assert sizes == [66 // num_ranks] * num_ranks
        assert rounded(planned_predictions(planned.microbatches)) == rounded(expected_predictions(rows))


def test_ranks_never_run_more_micro_batches_than_the_budget_asks_for() -> None:
    rows = [make_row(slot, [(-1, [10 + slot] * 8, [slot] * 4, 1)]) for slot in range(5)]
    planned = plan(rows, max_tokens_per_microbatch=24, num_ranks=2)
    sizes = [len(micro.token_ids_U) for micro in planned.microbatches]
    assert len(sizes) == 4
    assert sorted(sizes) == [1, 11, 22, 22]


def test_a_turn_under_two_versions_is_not_pure_and_ages_differ_by_token() -> None:
    (micro,) = plan([make_row(0, [(-1, [1], [2, 3], 1), (0, [], [4], 1)])]).microbatches
    assert micro.versions_T.tolist() == [1, 2, 0]
    assert micro.age_T.tolist() == [10, 0, 20]
    assert micro.pure_T.tolist() == [False, False, True]


def test_the_same_rows_give_the_same_plan() -> None:
    rows = [make_row(slot, [(-1, [1, slot % 2], [3, slot], 1), (0, [4], [5], 1)]) for slot in range(6)]
    once, again = (plan(rows, max_tokens_per_microbatch=9).microbatches for _ in range(2))
    assert len(once) == len(again)
    for a, b in zip(once, again, strict=True):
        for name in (field.name for field in dataclasses.fields(MicroBatch)):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_a_trained_token_without_a_logprob_is_refused_unless_the_loss_needs_none() -> None:
    row = dataclasses.replace(make_row(0, [(-1, [1], [2], 1)]), behavior_logprobs=[math.nan, math.nan])
    with pytest.raises(SampleError, match="t/0/0: 1 trained tokens have no finite behaviour log-prob"):
        plan([row])
    assert len(plan([row], options=dataclasses.replace(GRPO, loss_calculater="CrossEntropy")).microbatches) == 1


def test_a_greedy_turn_is_refused() -> None:
    row = make_row(0, [(-1, [1], [2], 1)])
    greedy = dataclasses.replace(row, turns=(dataclasses.replace(row.turns[0], temperature=0.0),))
    with pytest.raises(SampleError, match="temperature"):
        plan([greedy])


def test_a_row_whose_arrays_differ_in_length_is_refused() -> None:
    with pytest.raises(SampleError, match=r"t/0/0.*lengths"):
        plan([dataclasses.replace(make_row(0, [(-1, [1], [2], 1)]), mask=[0, 1, 1])])


@settings(max_examples=60, deadline=None)
@given(parents=st.lists(st.integers(-1, 9), min_size=1, max_size=10))
def test_chains_of_turns_are_the_segments_that_exact_prompts_give(parents: list[int]) -> None:
    parents = [min(parent, index - 1) for index, parent in enumerate(parents)]
    contexts: list[list[int]] = []
    turns = []
    for index, parent in enumerate(parents):
        prompt = [*(contexts[parent] if parent >= 0 else []), 2 * index]
        turns.append({"prompt_ids": prompt, "output_ids": [2 * index + 1], "logprobs": [-1.0]})
        contexts.append([*prompt, 2 * index + 1])
    spans = [TurnSpan(start=2 * i, end=2 * i + 2, parent=parent, advantage=0.0) for i, parent in enumerate(parents)]
    assert chains(spans) == [segment.turns for segment in segment_turns(turns)]
