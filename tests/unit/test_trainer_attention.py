import copy
import json
from pathlib import Path

import pytest
import torch
from trainer_help import gradients, model, plan, random_rows, relative, write_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.config import ModelOptions
from agentrl.errors import ConfigError
from agentrl.models.attention import TreeMask, tree_sdpa
from agentrl.models.load import load_policy, require_tree_attention
from agentrl.models.logprobs import token_logprobs


def limit_of(name: str) -> float:
    """What all keys have in common cancels in the softmax, and with it most of a key's gradient, not its rounding."""
    return 2e-6 if ".k_" in name else 1e-6


@pytest.mark.parametrize("block_tokens", [4, 256])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3", "llama", "mistral", "qwen3_moe"])
def test_a_tree_gives_the_loss_and_gradients_of_its_unfolded_rows(
    family: str, tied: bool, block_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentrl.models.attention.BLOCK_TOKENS", block_tokens)
    policy = model(tmp_path, family, tied=tied, gradient_checkpointing=True)
    for seed in range(3):
        rows = random_rows(seed)
        tree, tree_grads = gradients(policy, plan(rows))
        unfolded, unfolded_grads = gradients(policy, plan(rows, sharing="none"))
        assert sum(len(m.token_ids_U) for m in plan(rows)) < sum(len(m.token_ids_U) for m in plan(rows, sharing="none"))
        assert tree.results()["loss"] == pytest.approx(unfolded.results()["loss"], rel=1e-6)
        assert set(tree_grads) == {name for name, _ in policy.model.named_parameters()}
        for name, grad in tree_grads.items():
            assert relative(grad, unfolded_grads[name]) <= limit_of(name), name


def test_any_split_into_microbatches_gives_the_same_gradient(tmp_path: Path) -> None:
    policy = model(tmp_path)
    rows = random_rows(7, groups=3)
    whole, whole_grads = gradients(policy, plan(rows))
    for budget in (24, 48, 96):
        parts = plan(rows, budget=budget)
        assert len(parts) > 1
        split, split_grads = gradients(policy, parts)
        assert split.results()["loss"] == pytest.approx(whole.results()["loss"], rel=1e-6)
        assert split.results()["trained_tokens"] == whole.results()["trained_tokens"]
        for name, grad in split_grads.items():
            assert relative(grad, whole_grads[name]) <= limit_of(name), name


def test_a_chain_scores_as_the_stock_model_does(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "mistral", initializer_range=0.2)
    policy = load_policy(folder, ModelOptions(device="cpu"))
    stock = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    token_ids = torch.randint(0, 61, (40,), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        hidden = policy.hidden(token_ids, torch.arange(40), torch.full((40,), 40))
        ours, _ = token_logprobs(hidden[:-1], policy.lm_head_VD, token_ids[1:], torch.ones(39))
        logits = stock(token_ids[None]).logits[0, :-1]
    theirs = logits.log_softmax(-1).gather(1, token_ids[1:, None]).squeeze(1)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_attention_without_a_tree_mask_is_refused_not_bidirectional(tmp_path: Path) -> None:
    policy = model(tmp_path)
    with pytest.raises(ConfigError, match="without a tree mask"):
        policy.model(torch.arange(4)[None])


def test_attention_that_is_more_than_a_mask_is_refused() -> None:
    mask = TreeMask.of(torch.tensor([2, 2]), torch.arange(2))
    query = torch.zeros(1, 2, 2, 4)
    with pytest.raises(ConfigError, match="caps its attention logits"):
        tree_sdpa(torch.nn.Identity(), query, query, query, tree_mask=mask, softcap=30.0)
    with pytest.raises(ConfigError, match="sinks"):
        tree_sdpa(torch.nn.Identity(), query, query, query, tree_mask=mask, s_aux=torch.zeros(2))


def dense(mask: TreeMask, window: int | None = None) -> torch.Tensor:
    """The blocks put together: [U, U], True where the query (row) sees the key."""
    size = len(mask.positions_U)
    together = torch.zeros(size, size, dtype=torch.bool)
    queries = []
    for block in mask.blocks:
        keys = torch.cat([torch.arange(*span) for span in block.keys])
        rows = torch.arange(*block.queries)
        bias = mask.bias(block, window, torch.float32)
        seen = torch.ones(len(rows), len(keys)).tril().bool() if bias is None else bias == 0
        together[rows[:, None], keys] = seen
        queries += rows.tolist()
    assert queries == list(range(size)), "each token is the query of exactly one block, in order"
    return together


def test_the_mask_shows_ancestors_only_and_windows_count_depth() -> None:
    #      0 - 1 - 2
    #        \ 3 - 4
    mask = TreeMask.of(torch.tensor([5, 3, 3, 5, 5]), torch.tensor([0, 1, 2, 1, 2]))
    assert dense(mask).int().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert dense(mask, 2)[4].int().tolist() == [0, 0, 0, 1, 1]
    assert dense(mask, 2)[3].int().tolist() == [1, 0, 0, 1, 0]


@pytest.mark.parametrize("size", [1, 4, 16, 100_000])
def test_blocks_of_any_size_put_together_are_the_mask(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.models.attention.BLOCK_TOKENS", size)
    for seed in range(20):
        (micro,) = plan(random_rows(seed, groups=3))
        ends, positions = torch.from_numpy(micro.subtree_end_U), torch.from_numpy(micro.positions_U)
        index = torch.arange(len(ends))
        expected = (index <= index[:, None]) & (index[:, None] < ends)
        mask = TreeMask.of(ends, positions)
        assert torch.equal(dense(mask), expected)
        near = positions[:, None] - positions < 3
        assert torch.equal(dense(mask, 3), expected & near)


def test_blocks_do_not_pay_for_pairs_of_unrelated_branches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.models.attention.BLOCK_TOKENS", 16)
    stem, leaves, width = 100, 8, 200
    ends = torch.tensor(
        [stem + leaves * width] * stem + [stem + (1 + i // width) * width for i in range(leaves * width)]
    )
    mask = TreeMask.of(ends, torch.zeros_like(ends))
    pairs = sum((b.queries[1] - b.queries[0]) * sum(e - s for s, e in b.keys) for b in mask.blocks)
    assert pairs == stem * stem + leaves * width * (stem + width)


def test_a_path_too_long_for_a_mask_names_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentrl.models.attention.MAX_MASK", 15)
    mask = TreeMask.of(torch.tensor([4, 2, 4, 4]), torch.tensor([0, 1, 1, 2]))
    with pytest.raises(ConfigError, match="--max_tokens: a path of 4 tokens needs a mask beyond 15 elements"):
        dense(mask)


def test_a_model_under_training_leaves_other_models_of_its_config_alone(tmp_path: Path) -> None:
    stock = AutoModelForCausalLM.from_pretrained(write_model(tmp_path), attn_implementation="sdpa")
    load_policy(tmp_path, ModelOptions(device="cpu"))
    other = AutoModelForCausalLM.from_config(copy.deepcopy(stock.config))
    assert stock.config._attn_implementation == "sdpa"
    other(torch.arange(4)[None])


@pytest.mark.parametrize("with_entropy", [False, True])
def test_log_probs_have_the_gradient_of_full_logits(with_entropy: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(9, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    head = torch.randn(11, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    targets = torch.randint(0, 11, (9,), generator=generator)
    temperature = torch.rand(9, dtype=torch.float64, generator=generator) + 0.5

    def chunked(hidden: torch.Tensor, head: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logprobs, entropy = token_logprobs(hidden, head, targets, temperature, chunk=4, with_entropy=with_entropy)
        return (logprobs, entropy) if entropy is not None else (logprobs,)

    full = torch.log_softmax(hidden @ head.T / temperature[:, None], dim=-1)
    results = chunked(hidden, head)
    torch.testing.assert_close(results[0], full.gather(1, targets[:, None]).squeeze(1))
    if with_entropy:
        torch.testing.assert_close(results[1], -(full.exp() * full).sum(-1))
    assert torch.autograd.gradcheck(chunked, (hidden, head))


def test_log_probs_never_hold_more_logits_than_a_chunk() -> None:
    rows: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.ndim == 2 and out.shape[1] == 501:
                rows.append(out.shape[0])
            return out

    hidden = torch.randn(64, 8, requires_grad=True)
    head = torch.randn(501, 8, requires_grad=True)
    with Watch():
        logprobs, _ = token_logprobs(hidden, head, torch.zeros(64, dtype=torch.long), torch.ones(64), chunk=16)
        logprobs.sum().backward()
    assert rows
    assert max(rows) == 16


def test_a_saved_policy_loads_as_it_lies(tmp_path: Path) -> None:
    policy = model(tmp_path / "model", gradient_checkpointing=True)
    with torch.no_grad():
        next(policy.model.parameters()).add_(0.5)
    policy.save(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    assert again.config._attn_implementation != "tree_sdpa"
    for (name, ours), (_, theirs) in zip(policy.model.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(ours, theirs), name
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved").convert_tokens_to_ids("t7") == 7
    assert (tmp_path / "saved/chat_template.jinja").read_text() == "{{ messages }}"
    assert (tmp_path / "saved/generation_config.json").read_bytes() == (
        tmp_path / "model/generation_config.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"vision_config": {"hidden_size": 4}}, r"multimodal \(vision_config\)"),
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, which is no causal language model"),
        ({"model_type": "no-such-model"}, "transformers does not know this model"),
        ({"num_hidden_layers": 3}, "lacks weights of its own architecture"),
    ],
)
def test_models_that_cannot_train_are_refused(change: dict[str, object], message: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, "llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ConfigError, match=message):
        load_policy(folder, ModelOptions(device="cpu"))


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("cohere", "changes its logits after the head"),
        ("opt", r"drops out at random \(set its dropout to 0 in config\.json\)"),
        ("qwen3_next", "has layers of type linear_attention"),
        ("gemma2", "does not load under tree_sdpa|caps its attention logits"),
    ],
)
def test_families_that_are_more_than_masked_attention_are_refused(family: str, message: str, tmp_path: Path) -> None:
    write_model(tmp_path, family, tied=False)
    with pytest.raises(ConfigError, match=message):
        load_policy(tmp_path, ModelOptions(device="cpu"))


def test_a_model_whose_branches_see_each_other_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = model(tmp_path)
    monkeypatch.setattr("agentrl.models.load.PROBE_ENDS", (6, 6, 6, 6, 6, 6))
    with pytest.raises(ConfigError, match="its branches see each other"):
        require_tree_attention(policy)


def test_settings_that_do_nothing_here_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bfloat16 compute is not there yet"):
        load_policy(write_model(tmp_path), ModelOptions(torch_dtype="bfloat16"))
    with pytest.raises(ConfigError, match="is not the folder of a model"):
        load_policy(tmp_path / "nothing", ModelOptions(device="cpu"))
