"""``Policy``: a decoder-only Hugging Face model under tree attention, loaded, checked, saved.

Shapes: U unique tokens of packed trees, D width, V vocabulary.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from agentrl.config import ModelOptions
from agentrl.errors import ConfigError
from agentrl.models.attention import TREE_SDPA, TreeMask, register
from agentrl.models.logprobs import log_softmax
from agentrl.models.scorer import TreeScorer

SETTING = "--model_name_or_path"
COMPANIONS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "generation_config.json",
    "*.py",
)
"""Files beside the weights that belong to a model as it is used; copied, never written anew."""

LAYER_TYPES = {"full_attention", "sliding_attention"}
MODALITIES = {"vision", "audio", "speech", "image", "video", "thinker", "talker"}
"""A ``vision_config`` and its like in a configuration mark a model of more than text."""

PROBE_IDS = (1, 2, 3, 4, 3, 2)
PROBE_ENDS = (6, 6, 4, 4, 6, 6)
PROBE_POSITIONS = (0, 1, 2, 3, 2, 3)
PROBE_ROWS = ((0, 1, 2, 3), (0, 1, 4, 5))
"""A stem of two tokens with two branches of two, and its rows as indices into it."""
PROBE_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The model in training, float32 master weights. ``source`` is the folder its tokenizer files come from.

    ``score`` is called to train; sharded parameters are whole only inside of it.
    """

    model: PreTrainedModel
    source: Path
    score: TreeScorer

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def lm_head_VD(self) -> Tensor:
        return self.score.lm_head_VD

    @property
    def vocabulary_size(self) -> int:
        return self.lm_head_VD.shape[0]

    def hidden(self, token_ids_U: Tensor, positions_U: Tensor, subtree_end_U: Tensor) -> Tensor:
        """Hidden states [U, D] of a policy that is not sharded."""
        return self.score.hidden(token_ids_U, positions_U, subtree_end_U)

    @property
    def layers(self) -> list[nn.Module]:
        """The blocks that are sharded one by one: those that transformers never splits over devices."""
        names = set(self.model._no_split_modules or ())
        return [module for module in self.model.modules() if type(module).__name__ in names]

    def tensors(self) -> Mapping[str, Tensor]:
        """Parameters under their names in the checkpoint; tied ones once. Sharded ones are this rank's part."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def save(self, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
        """Write what ``from_pretrained`` and engines load as it lies; ``tensors`` are the parameters of a sharded
        policy, made whole."""
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        buffers = {name: value for name, value in self.model.state_dict().items() if name not in parameters}
        self.model.save_pretrained(folder, state_dict={**(self.tensors() if tensors is None else tensors), **buffers})
        for pattern in COMPANIONS:
            for path in sorted(self.source.glob(pattern)):
                if path.is_file():
                    shutil.copyfile(path, folder / path.name)


def load_policy(path: str | Path, options: ModelOptions) -> Policy:
    """Load the model in ``path`` for training; ``ConfigError`` says why a model or a setting is refused."""
    source = Path(path)
    device = choose_device(options)
    config = read_config(source, options)
    register()
    disable_progress_bar()
    model: Any = load_weights(source, config, options)
    policy = Policy(model=model.to(device), source=source, score=TreeScorer(model))
    require_plain_head(policy)
    without_dropout(model)
    model.train()
    require_tree_attention(policy)
    if options.gradient_checkpointing:
        recompute_activations(model)
    return policy


def load_weights(source: Path, config: Any, options: ModelOptions) -> PreTrainedModel:
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            source,
            # Models made from one config object share its attention name.
            config=copy.deepcopy(config),
            dtype=torch.float32,
            attn_implementation=TREE_SDPA,
            trust_remote_code=options.trust_remote_code,
            output_loading_info=True,
            local_files_only=True,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"{source} does not load under {TREE_SDPA}: {error}", setting=SETTING) from error
    model, info = loaded
    require_all_weights(source, info)
    return model


def choose_device(options: ModelOptions) -> torch.device:
    if options.torch_dtype != "float32":
        raise ConfigError(
            f"{options.torch_dtype} compute is not there yet: the trainer computes in float32 (leave the option out)",
            setting="--torch_dtype",
        )
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cuda was asked for, but torch sees no such device", setting="--device")
    if options.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(options.device)


def read_config(source: Path, options: ModelOptions) -> Any:
    """The model's configuration; refuses what is not a decoder-only language model."""
    try:
        raw = json.loads((source / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{source} is not the folder of a model: it has no config.json", setting=SETTING) from None
    except ValueError as error:
        raise ConfigError(f"{source / 'config.json'} is not JSON: {error}", setting=SETTING) from error
    family = raw.get("model_type", "unknown")
    if raw.get("is_encoder_decoder"):
        raise ConfigError(f"{source} ({family}) is an encoder-decoder; only decoder-only models train", setting=SETTING)
    extra = sorted(name for name in raw if name.endswith("_config") and name.split("_")[0] in MODALITIES)
    if extra:
        raise ConfigError(
            f"{source} ({family}) is multimodal ({', '.join(extra)}); only text models train", setting=SETTING
        )
    architectures = raw.get("architectures") or []
    if architectures and not any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in architectures):
        raise ConfigError(
            f"{source} holds {', '.join(architectures)}, which is no causal language model (...ForCausalLM)",
            setting=SETTING,
        )
    strange = sorted(set(raw.get("layer_types") or ()) - LAYER_TYPES)
    if strange:
        raise ConfigError(
            f"{source} ({family}) has layers of type {', '.join(strange)}; tree attention knows "
            f"{', '.join(sorted(LAYER_TYPES))}",
            setting=SETTING,
        )
    try:
        return AutoConfig.from_pretrained(source, trust_remote_code=options.trust_remote_code, local_files_only=True)
    except ValueError as error:
        raise ConfigError(f"{source}: transformers does not know this model: {error}", setting=SETTING) from error


def require_all_weights(source: Path, info: Any) -> None:
    """A weight that is missing would be random, silently."""
    missing = sorted(map(str, info["missing_keys"]))
    mismatched = sorted(map(str, info["mismatched_keys"]))
    if missing or mismatched:
        raise ConfigError(
            f"{source} lacks weights of its own architecture (missing: {missing[:5]}, of another shape: "
            f"{mismatched[:5]})",
            setting=SETTING,
        )


def require_plain_head(policy: Policy) -> None:
    head = policy.model.get_output_embeddings()
    if not isinstance(head, torch.nn.Linear) or head.bias is not None:
        raise ConfigError(
            f"{policy.source}: the output layer is {head}; one linear layer without bias is expected", setting=SETTING
        )


def without_dropout(model: PreTrainedModel) -> None:
    """The engine samples without dropout, so the trainer scores without it. What drops out by a function call instead
    is found, and refused, by ``require_tree_attention``."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0


def recompute_activations(model: PreTrainedModel) -> None:
    """transformers renamed the method within the versions that are allowed."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@torch.no_grad()
def require_tree_attention(policy: Policy) -> None:
    """Run a small tree and its rows as in training: a model that drops out at random, mixes branches, or changes its
    logits after the head, is refused."""
    ids_U, positions_U, ends_U = (
        torch.tensor(values, device=policy.device) for values in (PROBE_IDS, PROBE_POSITIONS, PROBE_ENDS)
    )
    try:
        tree_UD = policy.hidden(ids_U, positions_U, ends_U)
        again_UD = policy.hidden(ids_U, positions_U, ends_U)
        require_close(policy, again_UD, tree_UD, "it drops out at random (set its dropout to 0 in config.json)")
        for row in PROBE_ROWS:
            index = torch.tensor(row, device=policy.device)
            ends = torch.full_like(index, len(row))
            row_UD = policy.hidden(ids_U[index], positions_U[index], ends)
            require_close(policy, tree_UD[index], row_UD, "its branches see each other")
            mask = TreeMask.of(ends, positions_U[index])
            logits_UV = policy.model(
                input_ids=ids_U[index][None], position_ids=positions_U[index][None], tree_mask=mask, use_cache=False
            ).logits[0]
            ours_UV = log_softmax(row_UD, policy.lm_head_VD, torch.ones(len(row), device=policy.device))
            require_close(policy, ours_UV, logits_UV.log_softmax(dim=-1), "it changes its logits after the head")
    except TypeError as error:
        raise ConfigError(f"{policy.source}: {type(policy.model).__name__}: {error}", setting=SETTING) from error


def require_close(policy: Policy, seen: Tensor, expected: Tensor, reason: str) -> None:
    difference = float((seen - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
    if not difference <= PROBE_TOLERANCE:
        raise ConfigError(
            f"{policy.source}: {type(policy.model).__name__} cannot be trained here: {reason} "
            f"(relative difference {difference:.1e})",
            setting=SETTING,
        )
