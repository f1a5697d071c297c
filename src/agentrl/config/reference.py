"""Defaults of the reference's options that are kept here, and why ours differ where they do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Theirs:
    """``default`` as it is written there; ``reason`` is empty where ours is the same."""

    default: Any
    reason: str = ""


def same(default: Any) -> Theirs:
    return Theirs(default=default)


def changed(default: Any, reason: str) -> Theirs:
    return Theirs(default=default, reason=reason)


THEIRS: Mapping[str, Theirs] = MappingProxyType(
    {
        "enable_sampling": same(True),
        "train_file": changed(None, "empty means the tasks already in the store; a missing file is said at once"),
        "db_connection_string": changed("", "empty means run.db in the run folder: no database server is needed"),
        "model_name_or_path": same(None),
        "model_name": same("train-model"),
        "trust_remote_code": changed(True, "code that comes with a model runs only when it is asked for"),
        "torch_dtype": changed(
            "bfloat16", "weights and moments stay exact; one knob no longer sets masters and engine"
        ),
        "mcp_manager_url": changed(
            "http://localhost:9876/mcpapi", "no server is assumed; a run without tools is possible"
        ),
        "mcp_server_name": same("all"),
        "tool_call_parser": changed("qwen25", "the format is read off the model's chat template"),
        "num_generations": same(8),
        "max_new_tokens": same(8196),
        "max_prompt_tokens": changed(5_120_000, "that switches the context limit off; 131072 ends the episode in time"),
        "max_tokens": same(65_536),
        "max_turns": same(25),
        "min_turns": changed(
            1, "it drops right answers in fewer calls, not in as many: there 1 dropped every one-call answer"
        ),
        "repetition_early_stop_times": same(-1),
        "preferred_sampling_params": changed(
            '{"temperature": 1, "top_p": 1}', "empty is temperature 1 and the whole distribution"
        ),
        "target_concurrency": changed(1, "one episode at a time leaves engine and tools idle"),
        "max_concurrent_samples_per_process": changed(1, "0 leaves the bound to target_concurrency"),
        "sync_sampling": same(False),
        "max_trained_count": same(1),
        "retrained_interval": same(1),
        "resample_error_records": changed(False, "an episode that broke is nobody's answer; max_attempts is the bound"),
        "drop_zero_advantage": same(True),
        "skip_non_positive_advantage": same(False),
        "minimal_advantage": same(None),
        "adv_scaling": same(1.0),
        "loss_calculater": same("GRPO"),
        "token_level_loss": same(True),
        "skip_length_normalization": same(False),
        "strict_in_bound": same(False),
        "importance_weight_cap_ratio": same(4.0),
        "out_of_date_decay": same(None),
        "epsilon": same(0.2),
        "epsilon_higher": same(0.1),
        "beta1": same(None),
        "beta2": same(None),
        "learning_rate": same(1e-6),
        "weight_decay": same(0.0),
        "adam_beta1": same(0.9),
        "adam_beta2": same(0.999),
        "adam_epsilon": same(1e-8),
        "max_grad_norm": same(1.0),
        "max_steps": changed(-1, "-1 works: as many steps as the tasks give; there it had to be set"),
        "num_train_epochs": changed(3.0, "every task is sampled once unless more is asked for"),
        "lr_scheduler_type": changed("linear", "a decay needs the number of steps, which sampling decides"),
        "warmup_steps": same(0),
        "warmup_ratio": same(0.0),
        "per_device_train_batch_size": same(8),
        "gradient_accumulation_steps": same(1),
        "gradient_checkpointing": same(False),
        "logging_steps": changed(500, "an agent's step takes minutes: each is shown"),
        "save_steps": changed(500, "an agent's step takes minutes: less is lost"),
        "save_total_limit": changed(None, "none keeps all, which fills the disk; 0 does so here"),
        "eval_strategy": changed("no", "without an eval_file nothing is evaluated anyway"),
        "eval_steps": changed(None, "0 evaluates before and after training"),
        "seed": same(42),
        "resume_from_checkpoint": same(None),
        "run_name": same(None),
        "output_dir": changed(None, "a run is a folder below it, so one value serves all runs"),
    }
)
"""By name, of the reference's configs.py and of Hugging Face's training arguments, which it inherits."""
