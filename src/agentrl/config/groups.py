"""The option groups: one dataclass per concern, one flag per field.

Names are the seed's and the reference's where they exist; ``help`` of each field is what ``--help`` prints.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def option(default: Any, text: str, **metadata: Any) -> Any:
    """A field with help text; the parser reads ``choices=``, ``alias=`` and ``const=`` (what the bare flag means)."""
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata={"help": text, **metadata})
    return field(default=default, metadata={"help": text, **metadata})


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Run"""

    run_name: str = option("", "name of the run and of its folder below output_dir")
    output_dir: str = option("output", "runs are folders below this one")
    db_connection_string: str = option("", "sqlite:///PATH; default: run.db in the run folder")
    seed: int = option(42, "seed of sampling and of task order")
    enable_sampling: bool = option(True, "train starts this node's engine and sampler; false: trains from the store")
    resume_from_checkpoint: str = option("", "auto (newest complete checkpoint) or the path of one")
    logging_steps: int = option(1, "show every so many steps; all of them are in metrics.jsonl")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Model"""

    model_name_or_path: str = option("", "folder of a Hugging Face model")
    model_name: str = option("train-model", "name under which the engine serves it")
    torch_dtype: str = option(
        "float32", "compute dtype of `agentrl serve`; training computes in float32", choices=("float32", "bfloat16")
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass")
    trust_remote_code: bool = option(False, "run code that comes with the model")
    device: str = option("auto", "auto, cpu, cuda or cuda:N; auto takes cuda where it is")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Tasks"""

    train_file: str = option("", "JSONL of training tasks; empty: tasks already in the store")
    eval_file: str = option("", "JSONL of held-out tasks; empty: no evaluation")
    num_train_epochs: int = option(1, "how often each training task is sampled")
    task_sampling: str = option(
        "uniform",
        "each task once an epoch, those with a pass rate near one half more often, or by their weights",
        choices=("uniform", "difficulty", "weights"),
    )
    scorer_module: str = option("", "module that registers scorers (MCPScorerFactory.register_scorer) when imported")
    default_prompt: bool = option(True, "give tasks without system_prompt one that asks for the answer format")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutOptions:
    """Rollouts"""

    num_generations: int = option(8, "episodes per task: the group")
    eval_generations: int = option(1, "episodes per held-out task")
    max_turns: int = option(25, "model calls per episode; what the last one asks of tools is still done")
    max_new_tokens: int = option(8196, "sampled tokens per model call")
    max_prompt_tokens: int = option(131_072, "prompt tokens of a model call: the context limit")
    episode_timeout: float = option(600.0, "seconds an episode may take")
    preferred_sampling_params: dict[str, Any] = option({}, "JSON: temperature of training episodes")
    eval_sampling_params: dict[str, Any] = option(
        {"temperature": 0.0}, "JSON: temperature, top_p, top_k of held-out episodes"
    )
    tool_call_parser: str = option("auto", "tool-call format; auto reads it off the chat template")
    repetition_early_stop_times: int = option(-1, "end an episode after so many repeats of a reply; -1: never")
    max_silent_turns: int = option(2, "replies without call and answer before an episode ends")
    target_concurrency: int = option(
        32,
        "model requests in flight per engine on average; samplers share them",
    )
    max_concurrent_samples_per_process: int = option(0, "episodes running at once in one sampler; 0: no such bound")
    max_attempts: int = option(3, "attempts at a slot whose episode broke")
    resample_error_records: bool = option(True, "false: a slot whose episode broke is not played again")
    group_deadline: float = option(
        300.0, "seconds after the first finish of a group until its stragglers are abandoned"
    )
    scorer_timeout: float = option(30.0, "seconds a scorer may take")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """Tools"""

    mcp_manager_url: list[str] = option([], "stdio:COMMAND, builtin:NAME or a mcpServers file; several are taken")
    mcp_server_name: list[str] = option([], "only these servers are shown and callable; empty: all")
    tool_timeout: float = option(60.0, "seconds a tool call may take")
    tool_result_limit: int = option(20_000, "characters of a tool result the model reads")


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncOptions:
    """Staleness"""

    max_staleness: int = option(1, "steps that sampling may run ahead (bounds the mean)")
    drop_staleness: int = option(8, "rows sampled more steps ago than this are dropped, counted")
    sync_sampling: bool = option(False, "max_staleness 0, groups trained in order")
    max_trained_count: int = option(1, "how often each group is trained; drop_staleness has to allow it")
    retrained_interval: int = option(1, "steps until a group is trained again; a straggling end may shorten it")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """Budget"""

    budget: str = option("", "limits: tokens=2e6,tool_calls=1e5,tool_calls/NAME=500,money=20; empty: none")
    prices: str = option("", "TOML file of what tokens and calls cost; money needs it")
    budget_action: str = option(
        "stop",
        "at a limit: stop sampling and end well, pause (end, to go on later), or warn",
        choices=("stop", "pause", "warn"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoOptions:
    """Algorithm"""

    preset: str = option(
        "none",
        "recommended set of a loss ; settings that are given win",
        choices=("none", "grpo", "minirl", "gspo", "cispo", "dapo"),
    )
    loss_calculater: str = option(
        "GRPO",
        "loss",
        choices=("GRPO", "GSPO", "MINIRL", "CISPO", "DAPO", "DR_GRPO", "CrossEntropy"),
        alias="loss",
    )
    advantage_estimator: str = option(
        "leave_one_out",
        "baseline of the group",
        choices=("leave_one_out", "mean", "mean_std", "mean_std_ddof0", "mean_std_ddof1"),
    )
    drop_zero_advantage: bool = option(True, "groups whose scores are all equal are not trained")
    dynamic_sampling: bool = option(False, "groups that end without signal are replaced by further ones")
    dynamic_sampling_limit: int = option(
        0, "groups replaced for one step at most, then it is trained smaller; 0: three times its groups"
    )
    adv_scaling: float = option(1.0, "multiplies every advantage")
    minimal_advantage: float | None = option(None, "turns with a lower advantage are not trained; default: no limit")
    skip_non_positive_advantage: bool = option(False, "turns whose advantage is 0 or less are not trained")
    min_turns: int = option(1, "right answers in fewer model calls than this are not trained")
    epsilon: float = option(0.2, "lower bound of the ratio: 1 - epsilon")
    epsilon_higher: float = option(0.1, "upper bound of the ratio: 1 + epsilon + epsilon_higher")
    token_level_loss: bool = option(True, "every token of a step weighs the same; false: every episode")
    skip_length_normalization: bool = option(
        False, "with token_level_loss false: tokens of an episode are summed, not averaged"
    )
    out_of_bound_mask: bool | None = option(None, "mask tokens out of the bounds; default: on for MINIRL")
    strict_in_bound: bool = option(False, "bounds of the mask exactly at epsilon: nothing widens or narrows them")
    importance_weight_cap_ratio: float = option(4.0, "multiplies the epsilons of the mask")
    out_of_date_decay: float | None = option(None, "shrinks the epsilons of the mask by exp(-decay x age in steps)")
    is_cap: float | None = option(None, "upper cap of MINIRL's weight")
    cispo_cap_low: float = option(0.0, "lower cap of CISPO's weight, an absolute ratio")
    cispo_cap_high: float = option(5.0, "upper cap of CISPO's weight, an absolute ratio")
    loss_constant: int = option(0, "DR_GRPO divides by it; 0: max_new_tokens")
    beta1: float | None = option(None, "gradient kept below the lower clip (CE-GPPO); default: none")
    beta2: float | None = option(None, "gradient kept above the upper clip (CE-GPPO); default: none")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimOptions:
    """Optimizer"""

    learning_rate: float = option(1e-6, "peak learning rate")
    weight_decay: float = option(0.0, "AdamW weight decay")
    adam_beta1: float = option(0.9, "AdamW beta1")
    adam_beta2: float = option(0.999, "AdamW beta2")
    adam_epsilon: float = option(1e-8, "AdamW epsilon")
    max_grad_norm: float = option(1.0, "clip the gradient norm to this")
    lr_scheduler_type: str = option("constant", "schedule after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_steps: int = option(0, "steps of linear warm-up; wins over warmup_ratio")
    warmup_ratio: float = option(0.0, "warm-up as a part of all steps")
    max_steps: int = option(-1, "optimizer steps; -1: as many as the tasks give")
    per_device_train_batch_size: int = option(8, "records per micro-step and rank")
    gradient_accumulation_steps: int = option(1, "micro-steps per optimizer step")
    data_parallel_size: int = option(0, "ranks that train together; 0: as many as the launcher started, else 1")
    groups_per_step: int = option(0, "groups per optimizer step; 0: from the batch arithmetic")
    max_tokens: int = option(65_536, "longest trained path; turns that end beyond it are not trained")
    max_tokens_per_microbatch: int = option(0, "unique tokens per forward pass; 0: batch size x max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """Checkpoints and evaluation"""

    save_steps: int = option(50, "save every so many steps; the last step is always saved")
    save_total_limit: int = option(3, "keep so many checkpoints; 0 keeps all")
    save_only_model: bool = option(False, "checkpoints without training state: small, but no run can go on from them")
    eval_strategy: str = option(
        "steps", "steps: the eval_file before the first step, every eval_steps, after the last", choices=("no", "steps")
    )
    eval_steps: int = option(0, "evaluate every so many steps while training goes on; 0: only at both ends")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Engine"""

    engine: str = option("slots", "slots (embedded) or scripted (tests)", choices=("slots", "scripted"))
    engine_script: str = option("", "module:attr of the scripted engine's replies (tests)")
    engine_url: list[str] = option([], "http://HOST:PORT of engines that already run; several are taken")
    engine_slots: int = option(64, "sequences decoded together")
    max_context: int = option(0, "tokens of context; 0: the model's own limit")
    publish_timeout: float = option(120.0, "seconds for an engine to confirm new weights")
    wait_timeout: float = option(
        600.0, "seconds the trainer waits for a batch, and a sampler for an engine, before it fails and says why"
    )
    sampler_timeout: float = option(
        30.0, "seconds the trainer waits for a batch once every sampler it saw has died, before it fails"
    )
    heartbeat_timeout: float = option(25.0, "seconds without a heartbeat until a process of the run counts as hung")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Server of `agentrl serve`"""

    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(0, "port; 0 takes a free one")
    await_weights: bool = option(True, "for a run: wait for its first weights; false: serve the model as it lies")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptions:
    """Supervised training"""

    train_file: str = option("", "JSONL of dialogues: messages, and tools where they apply")
    supervise: str = option("all", "learn all replies of a dialogue, or its last one", choices=("all", "last"))
    num_train_epochs: int = option(3, "how often each dialogue is trained")


@dataclass(frozen=True, slots=True, kw_only=True)
class SftOptimOptions(OptimOptions):
    """Optimizer"""

    learning_rate: float = option(2e-5, "peak learning rate")
    lr_scheduler_type: str = option("cosine", "schedule after the warm-up", choices=("constant", "linear", "cosine"))
    warmup_ratio: float = option(0.03, "warm-up as a part of all steps")
    max_steps: int = option(-1, "optimizer steps; -1: as many as the dialogues give")
    per_device_train_batch_size: int = option(1, "dialogues per micro-step and rank")
    gradient_accumulation_steps: int = option(4, "micro-steps per optimizer step")
    max_tokens: int = option(21_000, "longest dialogue; longer ones are dropped, counted")
