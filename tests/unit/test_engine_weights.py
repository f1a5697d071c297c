"""The weight format: what is stored, what a hash covers, what a model accepts."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.engine.weights import FILE_NAME, load_weights, num_bytes, save_weights, tensor_hash
from agentrl.errors import WeightsError


def model(*, tied: bool = True, seed: int = 0, **more) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    small = {
        "vocab_size": 32,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }
    return Qwen3ForCausalLM(Qwen3Config(**{**small, **more}, tie_word_embeddings=tied))


def logits(of: Qwen3ForCausalLM) -> Tensor:
    with torch.no_grad():
        return of(input_ids=torch.tensor([[3, 1, 4, 1, 5]])).logits


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("named", ["state_dict", "named_parameters"])
def test_what_is_saved_is_loaded_bit_for_bit_in_place(tmp_path: Path, tied: bool, named: str) -> None:
    source, target = model(tied=tied, seed=1), model(tied=tied, seed=2)
    places = {name: tensor.data_ptr() for name, tensor in target.state_dict().items()}
    save_weights(tmp_path / "v1", dict(getattr(source, named)()))
    assert not torch.equal(logits(source), logits(target))
    load_weights(target, tmp_path / "v1")
    assert torch.equal(logits(source), logits(target))
    assert {name: tensor.data_ptr() for name, tensor in target.state_dict().items()} == places
    assert (target.lm_head.weight is target.model.embed_tokens.weight) is tied
    assert all(parameter.requires_grad for parameter in target.parameters())


def test_a_tied_head_is_stored_once_and_an_untied_one_twice(tmp_path: Path) -> None:
    for tied in (True, False):
        save_weights(tmp_path / "w", model(tied=tied).state_dict())
        assert ("lm_head.weight" in load_file(tmp_path / "w" / FILE_NAME)) is not tied


def test_transformers_loads_the_file_as_it_lies(tmp_path: Path) -> None:
    source = model(seed=5)
    source.config.save_pretrained(tmp_path / "w")
    save_weights(tmp_path / "new", source.state_dict())
    (tmp_path / "new" / FILE_NAME).rename(tmp_path / "w" / FILE_NAME)
    assert torch.equal(logits(Qwen3ForCausalLM.from_pretrained(tmp_path / "w")), logits(source))


def test_single_precision_is_loaded_into_a_half_precision_model(tmp_path: Path) -> None:
    source, target = model(seed=1), model(seed=2).to(torch.bfloat16)
    save_weights(tmp_path / "w", source.state_dict())
    load_weights(target, str(tmp_path / "w"))
    assert torch.equal(target.model.norm.weight, source.model.norm.weight.to(torch.bfloat16))
    assert target.lm_head.weight.dtype == torch.bfloat16


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.pop(name)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("model.norm.weight"), r"missing: model\.norm\.weight"),
        (without("model.embed_tokens.weight"), r"missing: lm_head\.weight, model\.embed_tokens\.weight"),
        (lambda t: t.update(extra=torch.ones(1)), "unexpected: extra"),
        (lambda t: t.update({"model.norm.weight": torch.ones(3)}), r"model\.norm\.weight \(3,\) instead of \(16,\)"),
        (lambda t: t.update({"lm_head.weight": torch.ones(32, 16)}), r"ties them to: lm_head\.weight"),
    ],
)
def test_weights_of_another_model_are_refused_by_name_and_change_nothing(tmp_path: Path, change, says: str) -> None:
    tensors = dict(model(seed=1).named_parameters())
    change(tensors)
    save_weights(tmp_path / "w", tensors)
    target = model(seed=2)
    before = copy.deepcopy(target.state_dict())
    with pytest.raises(WeightsError, match=says):
        load_weights(target, tmp_path / "w")
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())


def test_an_untied_model_needs_the_head_of_a_tied_one(tmp_path: Path) -> None:
    save_weights(tmp_path / "w", model(tied=True).state_dict())
    with pytest.raises(WeightsError, match=r"missing: lm_head\.weight"):
        load_weights(model(tied=False), tmp_path / "w")


def test_a_folder_without_readable_weights_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="nowhere"):
        load_weights(model(), tmp_path / "nowhere")
    (tmp_path / FILE_NAME).write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{cut")
    with pytest.raises(WeightsError, match=str(tmp_path)):
        load_weights(model(), tmp_path)


def test_saving_replaces_a_folder_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        save_weights(tmp_path / "v1", {"w": torch.full((2, 2), value)})
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]
    assert float(load_file(tmp_path / "v1" / FILE_NAME)["w"][0, 0]) == 2.0


def test_a_save_that_fails_leaves_the_version_before_and_no_rest(tmp_path: Path) -> None:
    save_weights(tmp_path / "v1", {"w": torch.ones(2)})
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(WeightsError, match="could not be written"):
        save_weights(tmp_path / "file" / "v2", {"w": torch.ones(2)})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "v1"]


def test_the_hash_covers_names_dtypes_shapes_and_bytes_but_not_order_or_ties() -> None:
    one = {"a": torch.arange(6.0), "b": torch.ones(2)}
    assert tensor_hash(one) == tensor_hash(dict(reversed(one.items())))
    assert tensor_hash(one) == tensor_hash({**one, "tied": one["a"]})
    others = [
        {"c": one["a"], "b": one["b"]},
        {**one, "a": one["a"].reshape(2, 3)},
        {**one, "a": one["a"].to(torch.bfloat16)},
        {**one, "a": one["a"] + torch.tensor([0.0, 0, 0, 0, 0, 1e-6])},
        {**one, "c": torch.ones(1)},
    ]
    assert len({tensor_hash(each) for each in [one, *others]}) == len(others) + 1


def test_scalars_views_and_empty_tensors_are_hashed_and_saved(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {"scalar": torch.tensor(2.0), "view": base.T, "empty": torch.empty(0), "none": torch.empty(0, 3)}
    assert tensor_hash(tensors) == tensor_hash({**tensors, "view": base.T.contiguous()})
    save_weights(tmp_path / "w", tensors)
    saved = load_file(tmp_path / "w" / FILE_NAME)
    assert sorted(saved) == sorted(tensors)
    assert torch.equal(saved["view"], base.T)
    assert num_bytes(tensors) == 4 + 48
