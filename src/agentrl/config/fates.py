"""What becomes of every option somebody may bring along: kept, accepted without effect, refused, or owed.

Kept options are the fields of ``groups``; this table holds all other names of the reference, of Hugging Face's training
arguments, and of parts of the design that are not built yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from agentrl.errors import ConfigError

ANY = ("*",)
OFF = ("false", "none", "")


class Fate(StrEnum):
    IDLE = "accepted without effect"
    REFUSED = "refused"
    OWED = "not built yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """``taken`` are values that mean what happens anyhow, ``noted`` those accepted with ``note`` at start; any other
    value is refused with ``instead``."""

    name: str
    fate: Fate
    note: str = ""
    noted: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    instead: str = ""
    issue: str = ""

    def judge(self, value: str) -> str:
        """The line to print at start, or nothing. Raise ``ConfigError`` with the way out for a refused value."""
        if same_value(value, self.taken):
            return ""
        if same_value(value, self.noted):
            return f"{self.name}: {self.note}"
        owed = f"{value or 'it'} is not built yet (owed by {self.issue}): " if self.issue else ""
        raise ConfigError(f"{owed}{self.instead}", setting=f"--{self.name}")


def same_value(value: str, known: tuple[str, ...]) -> bool:
    return known == ANY or plain(value) in {plain(each) for each in known}


def plain(value: str) -> str:
    """``False``, ``no`` and ``0.0`` are as good as ``false`` and ``0``."""
    text = value.strip().lower()
    text = {"no": "false", "off": "false", "n": "false", "f": "false", "null": "none"}.get(text, text)
    text = {"yes": "true", "on": "true", "y": "true", "t": "true"}.get(text, text)
    try:
        return f"{float(text):g}"
    except ValueError:
        return text


def idle(name: str, note: str, *, noted: tuple[str, ...] = ANY, instead: str = "") -> Row:
    return Row(name=name, fate=Fate.IDLE, note=note, noted=noted, instead=instead)


def refused(name: str, instead: str, *, taken: tuple[str, ...] = OFF) -> Row:
    return Row(name=name, fate=Fate.REFUSED, instead=instead, taken=taken)


def owed(
    name: str, issue: str, instead: str, *, taken: tuple[str, ...] = OFF, noted: tuple[str, ...] = (), note: str = ""
) -> Row:
    return Row(name=name, fate=Fate.OWED, issue=issue, instead=instead, taken=taken, noted=noted, note=note)


ONE, ZERO = ("1",), ("0", "none")

ROWS = (
    # --- The reference's: accepted without effect ------------------------------------------------------------------
    idle("trainer", "one trainer for text models", noted=("QwenTrainer",), instead="only text models train; omit it"),
    idle("pad_to_multiple_of", "trees are packed, rows are not padded"),
    idle("pad_to_maximum", "trees are packed, rows are not padded"),
    idle("dynamic_batching", "batches are packed to max_tokens_per_microbatch"),
    idle("shift_labels", "a target is always the next token"),
    idle("enable_loss_parallel", "log-probs are computed in chunks of tokens"),
    idle("bypass_causal_mask_check", "the mask comes from the prefix tree"),
    idle("tune_vision", "only text models train"),
    idle("remove_experience", "everything stays in the store", noted=OFF, instead="everything stays; omit it"),
    idle(
        "top_k", "log-probs of sampled tokens are stored", noted=ONE, instead="--eval_sampling_params '{\"top_k\": 5}'"
    ),
    idle("compress_history", "the context is kept whole", noted=OFF, instead="use --new_context (owed by rollouts)"),
    idle("enable_oss", "there is no object storage", noted=OFF, instead="texts and tokens are in the store; omit it"),
    # --- The reference's: refused ----------------------------------------------------------------------------------
    refused("oss_connection_string", "there is no object storage: texts and tokens are in --db_connection_string"),
    refused("decoder_sparse_step", "the model's config.json says which layers are sparse; change it there"),
    refused("output_router_logits", "no loss uses them: leave it out"),
    refused("max_pixels", "only text models train: leave it out"),
    refused(
        "temperature", "--preferred_sampling_params '{\"temperature\": 1.0}' (eval_sampling_params for evaluation)"
    ),
    refused("top_p", "--eval_sampling_params '{\"top_p\": 0.9}'; training samples the whole distribution", taken=ONE),
    refused("min_p", "no sampler cuts by min_p; --eval_sampling_params takes temperature, top_p, top_k", taken=ZERO),
    refused("max_train_tokens", "--max_tokens is the longest trained path"),
    # --- The reference's: owed -------------------------------------------------------------------------------------
    owed("mcp_auth_token", "agentdock", 'put it into "env" of the server in a mcpServers file'),
    owed("agent_config_path", "rollouts", "there is no judge model: set scorer exact, math or f1 in the tasks"),
    owed("new_context", "rollouts", "leave it out and raise --max_prompt_tokens", taken=("disabled",)),
    owed("enable_repetition_compress", "rollouts", "--repetition_early_stop_times N ends an episode that repeats"),
    owed("efficient_rewarding", "rollouts", "score by length in a scorer of your own (--scorer_module)"),
    owed("reserve_context_error_count", "rollouts", "leave it out: episodes that hit a limit train with their score"),
    owed("balance_sample", "rollouts", "leave it out: every sibling of a group is trained"),
    owed("presence_penalty", "engines", "leave it out; ratio losses refuse it in training in any case", taken=ZERO),
    owed("frequency_penalty", "engines", "leave it out; ratio losses refuse it in training in any case", taken=ZERO),
    owed("tp_size", "trainer", "leave it out; ranks share the weights by FSDP2", taken=ONE),
    owed("pp_size", "trainer", "leave it out; ranks share the weights by FSDP2", taken=ONE),
    owed("ep_size", "trainer", "leave it out; ranks share the weights by FSDP2", taken=ONE),
    owed("cp_size", "trainer", "leave it out and lower --max_tokens", taken=ONE),
    owed("inf_tp_size", "engines", "start a large engine yourself and name it by --engine_url", taken=ONE),
    owed("inf_ep_size", "engines", "start a large engine yourself and name it by --engine_url", taken=ONE),
    owed("inf_mem_ratio", "engines", "--engine_slots and --max_context bound the engine's memory"),
    owed("activation_offloading", "trainer", "use --gradient_checkpointing"),
    owed(
        "cpu_ram_efficient_loading",
        "trainer",
        "leave it out",
        noted=("true",),
        note="every rank reads the model's file itself",
    ),
    owed(
        "attention_implementation",
        "trainer",
        "leave it out: auto computes the prefix tree with a dense mask",
        taken=("auto", "tree_sdpa"),
        noted=("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flex_attention"),
        note="becomes tree_sdpa (one tree mask)",
    ),
    owed("log_entropy", "trainer", "leave it out"),
    owed("loss_seq_chunk_size", "trainer", "leave it out: log-probs are chunked by the size of the vocabulary"),
    # --- New here: owed --------------------------------------------------------------------------------------------
    owed("ratio_base", "trainer", "leave it out: ratios are pi/mu", taken=("behavior",)),
    owed("updates_per_batch", "trainer", "leave it out and lower the batch: each group makes one step", taken=ONE),
    owed("mismatch_correction", "trainer", "leave it out; --out_of_bound_mask and --is_cap bound the ratio"),
    owed("kl_coef", "trainer", "leave it out; a lower --learning_rate or --epsilon keeps the policy near", taken=ZERO),
    owed("entropy_coef", "trainer", "leave it out; a higher --epsilon_higher keeps entropy up", taken=ZERO),
    owed("prefix_sharing", "trainer", "leave it out: prefixes are shared over the whole tree", taken=("tree",)),
    owed("placement", "engines", "leave it out; engines elsewhere are named by --engine_url"),
    owed("inf_gpus", "engines", "start `agentrl serve --device cuda:N` and name it by --engine_url", taken=ZERO),
    owed("colocate_mode", "engines", "leave it out: engine and trainer run side by side", taken=("concurrent",)),
    owed("engine_python", "engines", "start the engine yourself and name it by --engine_url"),
    owed("engine_env", "engines", "set the variables for `agentrl run`: its children inherit them"),
    owed("offload", "trainer", "use --gradient_checkpointing"),
    owed("lora_rank", "trainer", "leave it out: all weights are trained", taken=ZERO),
    owed("dp_replicate", "trainer", "leave it out: weights are sharded over all ranks", taken=ONE),
    owed("score", "rollouts", "set scorer none in the tasks that need no score"),
    # --- Hugging Face's: accepted without effect -------------------------------------------------------------------
    idle("remove_unused_columns", "rows of the store have fixed fields"),
    idle("accelerator_config", "batches are planned for all ranks at once"),
    idle("dataloader_num_workers", "groups come from the store"),
    idle("dataloader_prefetch_factor", "groups come from the store"),
    idle("dataloader_pin_memory", "groups come from the store"),
    idle("dataloader_persistent_workers", "groups come from the store"),
    idle("dataloader_drop_last", "a step is a number of whole groups"),
    idle("dataloader_in_order", "--sync_sampling decides the order"),
    idle("dataloader_multiprocessing_context", "groups come from the store"),
    idle("train_sampling_strategy", "task order follows from --seed"),
    idle("group_by_length", "trees are packed by size anyway"),
    idle("length_column_name", "trees are packed by size anyway"),
    idle("label_names", "rows of the store have fixed fields"),
    idle("prediction_loss_only", "evaluation plays episodes and has no loss"),
    idle("batch_eval_metrics", "evaluation plays episodes and has no loss"),
    idle("eval_accumulation_steps", "evaluation plays episodes and has no loss"),
    idle("eval_do_concat_batches", "evaluation plays episodes and has no loss"),
    idle("eval_use_gather_object", "evaluation plays episodes and has no loss"),
    idle("include_for_metrics", "evaluation plays episodes and has no loss"),
    idle("per_device_eval_batch_size", "--target_concurrency is the bound"),
    idle("average_tokens_across_devices", "it is always so"),
    idle("ddp_find_unused_parameters", "ranks share the weights by FSDP2"),
    idle("ddp_bucket_cap_mb", "ranks share the weights by FSDP2"),
    idle("ddp_broadcast_buffers", "ranks share the weights by FSDP2"),
    idle("ddp_static_graph", "ranks share the weights by FSDP2"),
    idle("ddp_timeout", "a rank that fails is named and ends the run"),
    idle("local_rank", "it is read from the launcher's environment"),
    idle("disable_tqdm", "there are no progress bars"),
    idle("log_level", "LOG_LEVEL in the environment sets it"),
    idle("log_level_replica", "LOG_LEVEL in the environment sets it"),
    idle("log_on_each_node", "each process has its log in the run folder"),
    idle("logging_dir", "logs are in the run folder"),
    idle("logging_first_step", "--logging_steps shows the first step too"),
    idle("logging_nan_inf_filter", "a step that is not finite stops the run"),
    idle("include_num_input_tokens_seen", "tokens are counted in metrics.jsonl"),
    idle("include_tokens_per_second", "tokens and seconds are in metrics.jsonl"),
    idle("skip_memory_metrics", "memory is no metric"),
    idle("save_safetensors", "weights are always saved as safetensors"),
    idle("save_on_each_node", "one folder holds the run"),
    idle("overwrite_output_dir", "a run is never overwritten"),
    idle("ignore_data_skip", "a resumed run takes untrained groups"),
    idle("restore_callback_states_from_checkpoint", "there are no callbacks"),
    idle("use_cache", "training needs no cache"),
    idle("gradient_checkpointing_kwargs", "layers recompute non-reentrantly"),
    idle("activation_checkpointing_kwargs", "layers recompute non-reentrantly"),
    idle("do_train", "the command says what is done"),
    idle("do_eval", "the command says what is done"),
    idle("do_predict", "the command says what is done"),
    idle("project", "no tracker is told of the run"),
    idle("trackio_space_id", "no tracker is told of the run"),
    idle("trackio_bucket_id", "no tracker is told of the run"),
    idle("trackio_static_space_id", "no tracker is told of the run"),
    idle("optim", "AdamW", noted=("adamw_torch", "adamw_torch_fused", "adamw_hf"), instead="only AdamW is built in"),
    idle("logging_strategy", "--logging_steps decides", noted=("steps",), instead="--logging_steps N"),
    idle("save_strategy", "--save_steps decides", noted=("steps",), instead="--save_steps N"),
    # --- Hugging Face's: refused -----------------------------------------------------------------------------------
    refused("deepspeed", "start with torchrun or accelerate launch: ranks share the weights by FSDP2"),
    refused("fsdp", "start with torchrun or accelerate launch: ranks share the weights by FSDP2"),
    refused("fsdp_config", "give the file to accelerate launch (assets/fsdp2_dst.yml)"),
    refused("parallelism_config", "start with torchrun or accelerate launch: ranks share the weights by FSDP2"),
    refused("ddp_backend", "the device decides: leave it out"),
    refused("fp16", "half precision with loss scaling is not built in: leave it out"),
    refused("bf16_full_eval", "evaluation runs in the engine: --torch_dtype of `agentrl serve`"),
    refused("fp16_full_eval", "evaluation runs in the engine: --torch_dtype of `agentrl serve`"),
    refused("tf32", "set NVIDIA_TF32_OVERRIDE in the environment: leave it out"),
    refused("activation_checkpointing", "use --gradient_checkpointing"),
    refused("use_liger_kernel", "log-probs are computed in chunks already: leave it out"),
    refused("liger_kernel_config", "log-probs are computed in chunks already: leave it out"),
    refused("neftune_noise_alpha", "noise would change every ratio: leave it out"),
    refused("label_smoothing_factor", "no loss smooths its targets: leave it out", taken=ZERO),
    refused("torch_empty_cache_steps", "lower --max_tokens_per_microbatch for less memory"),
    refused("auto_find_batch_size", "--max_tokens_per_microbatch bounds the memory"),
    refused("optim_target_modules", "all weights are trained: leave it out"),
    refused("load_best_model_at_end", "evaluate the checkpoints and take the best folder"),
    refused("metric_for_best_model", "evaluate the checkpoints and take the best folder"),
    refused("greater_is_better", "evaluate the checkpoints and take the best folder"),
    refused("evaluation_strategy", "its name is --eval_strategy", taken=()),
    refused("eval_on_start", "--eval_strategy steps evaluates before the first step", taken=()),
    refused("eval_delay", "--eval_steps N evaluates every N steps", taken=ZERO),
    refused("lr_scheduler_kwargs", "schedules have no settings but --warmup_steps: leave it out"),
    refused("enable_jit_checkpoint", "SIGTERM saves the step in progress anyway: leave it out"),
    refused("full_determinism", "a run on CPU with --sync_sampling is repeatable: leave it out"),
    refused("data_seed", "--seed is the seed of sampling and of task order"),
    refused("use_cpu", "--device cpu", taken=("false",)),
    refused("no_cuda", "--device cpu", taken=("false",)),
    refused("debug", "LOG_LEVEL=DEBUG in the environment"),
    refused("push_to_hub", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_model_id", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_token", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_private_repo", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_strategy", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_always_push", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    refused("hub_revision", "upload a folder output/RUN/checkpoint-N: it loads as it lies"),
    # --- Hugging Face's: owed --------------------------------------------------------------------------------------
    owed("bf16", "trainer", "training computes in float32 (on a CPU bfloat16 is slower, not faster): leave it out"),
    owed("torch_compile", "trainer", "leave it out"),
    owed("torch_compile_backend", "trainer", "leave it out"),
    owed("torch_compile_mode", "trainer", "leave it out"),
    owed("optim_args", "trainer", "--adam_beta1, --adam_beta2, --adam_epsilon and --weight_decay say the same"),
    owed("report_to", "trainer", "leave it out: every step is a line of metrics.jsonl in the run folder"),
    owed("hub", "release", "download the model first and give its folder as --model_name_or_path"),
)
"""One row per name, by origin and fate."""

FATES: Mapping[str, Row] = MappingProxyType({row.name: row for row in ROWS})
