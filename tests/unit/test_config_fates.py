"""Every option of the reference, of its scripts and of Hugging Face has one fate, and the parser deals it."""

import dataclasses
import re
from pathlib import Path

import pytest
from transformers import TrainingArguments

from agentrl.config import RunConfig
from agentrl.config.fates import ANY, FATES, ROWS, Fate, same_value
from agentrl.config.pages import DOCS, from_reference, options_owed
from agentrl.config.reference import THEIRS
from agentrl.config.run import GROUPS
from agentrl.errors import ConfigError

KEPT = {field.name: field for group in GROUPS for field in dataclasses.fields(group)}

REFERENCE = (
    "trainer train_file max_pixels remove_experience drop_zero_advantage shift_labels db_connection_string "
    "oss_connection_string enable_oss skip_non_positive_advantage model_name_or_path attention_implementation "
    "output_router_logits trust_remote_code cpu_ram_efficient_loading torch_dtype tp_size pp_size ep_size cp_size "
    "pad_to_multiple_of bypass_causal_mask_check enable_loss_parallel loss_seq_chunk_size activation_offloading "
    "decoder_sparse_step remove_unused_columns pad_to_maximum dynamic_batching learning_rate epsilon epsilon_higher "
    "beta1 beta2 tune_vision adv_scaling max_tokens balance_sample token_level_loss out_of_date_decay "
    "importance_weight_cap_ratio strict_in_bound log_entropy skip_length_normalization loss_calculater "
    "max_trained_count retrained_interval minimal_advantage enable_sampling sync_sampling max_new_tokens "
    "max_prompt_tokens num_generations tool_call_parser model_name inf_tp_size inf_ep_size "
    "max_concurrent_samples_per_process target_concurrency inf_mem_ratio top_k presence_penalty frequency_penalty "
    "preferred_sampling_params resample_error_records mcp_server_name mcp_manager_url mcp_auth_token max_turns "
    "min_turns repetition_early_stop_times enable_repetition_compress new_context agent_config_path "
    "reserve_context_error_count efficient_rewarding compress_history"
).split()
"""The reference's configs.py, and the name that its script passes though it is not there."""

DESIGN = (
    "eval_file run_name output_dir inf_ep_size bf16 gradient_checkpointing num_train_epochs max_steps "
    "per_device_train_batch_size gradient_accumulation_steps weight_decay warmup_steps warmup_ratio lr_scheduler_type "
    "max_grad_norm optim_args adam_beta1 adam_beta2 logging_steps save_steps save_only_model save_total_limit "
    "eval_strategy eval_steps seed report_to resume_from_checkpoint accelerator_config max_staleness drop_staleness "
    "groups_per_step group_deadline eval_generations advantage_estimator ratio_base updates_per_batch "
    "mismatch_correction is_cap cispo_cap_low cispo_cap_high loss_constant out_of_bound_mask kl_coef entropy_coef "
    "prefix_sharing max_tokens_per_microbatch dynamic_sampling task_sampling placement inf_gpus colocate_mode engine "
    "engine_url engine_python engine_env offload lora_rank dp_replicate preset deepspeed fsdp"
).split()

HUGGING_FACE = [field.name for field in dataclasses.fields(TrainingArguments)] + (
    "warmup_ratio evaluation_strategy overwrite_output_dir logging_dir save_safetensors group_by_length "
    "include_tokens_per_second no_cuda"
).split()
"""Of the installed version, and names of earlier versions."""


def parse(*argv: str) -> RunConfig:
    return RunConfig.parse(argv, command="test")


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(*argv)
    return str(raised.value)


@pytest.mark.parametrize("names", [REFERENCE, DESIGN, HUGGING_FACE], ids=["reference", "design", "hugging face"])
def test_every_name_has_exactly_one_fate(names: list[str]) -> None:
    assert [name for name in names if (name in KEPT) == (name in FATES)] == []


def test_no_name_is_in_the_table_twice_or_kept_as_well() -> None:
    assert len(ROWS) == len(FATES)
    assert not FATES.keys() & KEPT.keys()


def test_the_parser_takes_what_means_the_same_and_tells_what_has_no_effect() -> None:
    for number in range(max(len(row.taken) for row in FATES.values())):
        assert (
            parse(*(f"--{row.name}={row.taken[number]}" for row in FATES.values() if number < len(row.taken)))
            == parse()
        )
    noted = [row for row in FATES.values() if row.noted]
    for pick in (0, -1):
        flags = [f"--{row.name}={'1' if row.noted == ANY else row.noted[pick]}" for row in noted]
        assert parse(*flags).asked.notices == tuple(f"{row.name}: {row.note}" for row in noted)


@pytest.mark.parametrize("name", [row.name for row in FATES.values() if row.noted != ANY])
def test_the_parser_refuses_any_other_value_with_the_way_out(name: str) -> None:
    row, message = FATES[name], refusal(f"--{name}=something else")
    owed = f"something else is not built yet (owed by {row.issue}): " if row.issue else ""
    assert message == f"--{name}: {owed}{row.instead}"


def test_a_row_says_what_to_do_unless_all_is_accepted() -> None:
    issues = "surface ledger-1 ledger-2 rollouts trainer engines agentdock release".split()
    for row in FATES.values():
        assert row.noted == ANY or 10 < len(row.instead) <= 90, row.name
        assert (row.issue in issues) == (row.fate is Fate.OWED), row.name


def test_an_option_named_as_the_way_out_exists() -> None:
    for row in FATES.values():
        for name in re.findall(r"--(\w+)", row.instead + row.note):
            assert name in KEPT or name in FATES, f"{row.name} names {name}"


@pytest.mark.parametrize(
    ("value", "known", "same"),
    [
        ("False", ("false",), True),
        ("no", ("false",), True),
        ("on", ("true",), True),
        ("0.0", ("0",), True),
        ("1e0", ("1",), True),
        ("null", ("none",), True),
        ("", ("none", ""), True),
        ("2", ("1",), False),
        ("true", ("false", "none", ""), False),
        ("anything", ANY, True),
    ],
)
def test_values_are_the_same_however_they_are_written(value: str, known: tuple[str, ...], same: bool) -> None:
    assert same_value(value, known) is same


# --- Syntax ------------------------------------------------------------------------------------------------------


def test_names_without_effect_are_read_as_hugging_face_reads_them() -> None:
    config = parse(
        "--shift-labels", "true", "--pad_to_maximum", "--accelerator_config", '{"split_batches": true}', "--seed=3"
    )
    assert [notice.split(":")[0] for notice in config.asked.notices] == [
        "pad_to_maximum",
        "shift_labels",
        "accelerator_config",
    ]
    assert config.run.seed == 3


def test_a_file_may_hold_names_of_every_fate(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("accelerator_config: {split_batches: true}\ntp_size: 1\nreport_to: none\nseed: 3\nenable_oss: no\n")
    config = parse(f"--config={path}")
    assert config.run.seed == 3
    assert [notice.split(":")[0] for notice in config.asked.notices] == ["enable_oss", "accelerator_config"]
    path.write_text("report_to: [tensorboard, swanlab]\n")
    assert refusal(f"--config={path}").startswith("--report_to: tensorboard,swanlab is not built yet")


def test_a_flag_wins_over_a_file_also_for_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("tp_size: 4\n")
    assert "4 is not built yet" in refusal(f"--config={path}")
    assert parse(f"--config={path}", "--tp_size=1").asked.notices == ()


def test_a_name_near_to_one_of_the_table_is_suggested() -> None:
    assert refusal("--tp_sizes=2") == "--tp_sizes: unknown option; did you mean --tp_size?"


def test_the_saved_configuration_holds_kept_options_only(tmp_path: Path) -> None:
    config = parse("--shift_labels", "--run_name=r")
    config.save(tmp_path / "config.yaml")
    assert "shift_labels" not in (tmp_path / "config.yaml").read_text()
    assert parse(f"--config={tmp_path / 'config.yaml'}") == config


# --- Command lines as the reference's scripts have them ----------------------------------------------------------

SAMPLING = (
    "--enable_sampling true --train_file train.jsonl --run_name r --output_dir output/r --model_name_or_path model "
    "--model_name train-model --db_connection_string sqlite:///run.db --mcp_server_name calculator "
    "--mcp_manager_url builtin:calculator --tool_call_parser qwen25 --num_generations 8 --max_new_tokens 8192 "
    "--max_prompt_tokens 131072 --max_turns 100 --min_turns 1 --repetition_early_stop_times 4 --top_k 1 "
    "--enable_repetition_compress false --new_context disabled --max_concurrent_samples_per_process 16 "
    "--target_concurrency 32 --sync_sampling false --resample_error_records true --efficient_rewarding false "
    "--balance_sample false --presence_penalty 0.0 --frequency_penalty 0.0 --inf_tp_size 1 --inf_ep_size 1 "
)
TRAINING = (
    "--trainer QwenTrainer --attention_implementation sdpa --trust_remote_code true --cpu_ram_efficient_loading true "
    "--activation_offloading false --tp_size 1 --pp_size 1 --ep_size 1 --cp_size 1 --pad_to_multiple_of 1 "
    "--enable_loss_parallel true --dynamic_batching false --shift_labels true --adv_scaling 2.0 "
    "--drop_zero_advantage true --max_trained_count 1 --retrained_interval 1 --max_tokens 65536 --max_steps 500 "
    "--per_device_train_batch_size 1 --gradient_accumulation_steps 48 --learning_rate 2e-6 --weight_decay 0.01 "
    "--warmup_steps 5 --lr_scheduler_type constant --max_grad_norm 1.0 --adam_beta1 0.9 --adam_beta2 0.95 "
    "--gradient_checkpointing true --logging_steps 1 --save_steps 20 --save_total_limit 3 --dataloader_num_workers 1 "
    "--dataloader_prefetch_factor 2 --remove_unused_columns false --seed 42 --report_to none --eval_strategy no "
    "--log_entropy false --bf16 false "
)
SCRIPTS = {
    "grpo": SAMPLING + TRAINING + "--loss_calculater GRPO --token_level_loss true",
    "minirl": SAMPLING
    + TRAINING
    + "--loss_calculater MINIRL --token_level_loss false --strict_in_bound true --skip_length_normalization true "
    "--compress_history false",
    "eval": SAMPLING + "--enable_sampling true --eval_file eval.jsonl --eval_generations 4",
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_options_of_the_scripts_are_taken_and_what_has_no_effect_is_told(script: str) -> None:
    config = parse(*SCRIPTS[script].split())
    told = {notice.split(":")[0] for notice in config.asked.notices}
    assert "top_k" in told
    assert told == {
        flag[2:]
        for flag in SCRIPTS[script].split()
        if flag.startswith("--") and (row := FATES.get(flag[2:])) is not None and row.noted
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("--tp_size 4", "--tp_size: 4 is not built yet (owed by trainer): leave it out"),
        ("--inf_tp_size 4", "--inf_tp_size: 4 is not built yet (owed by engines): start a large engine yourself"),
        ("--new_context discard_all", "--new_context: discard_all is not built yet (owed by rollouts): leave it out"),
        ("--enable_oss true", "--enable_oss: texts and tokens are in the store"),
        ("--trainer QwenVLTrainer", "--trainer: only text models train"),
        ("--compress_history", "--compress_history: use --new_context (owed by rollouts)"),
        ("--bf16", "--bf16: true is not built yet (owed by trainer): training computes in float32 (on a CPU"),
        ("--deepspeed zero3.json", "--deepspeed: start with torchrun or accelerate launch"),
        ("--top_k 5", "--top_k: --eval_sampling_params '{\"top_k\": 5}'"),
        ("--temperature 0.7", "--temperature: --preferred_sampling_params '{\"temperature\": 1.0}'"),
    ],
)
def test_a_script_that_asks_for_what_is_not_there_hears_the_way_out(change: str, message: str) -> None:
    assert refusal(*SCRIPTS["grpo"].split(), *change.split()).startswith(message)


# --- Attempts ----------------------------------------------------------------------------------------------------


def test_resample_error_records_decides_whether_a_broken_slot_is_played_again() -> None:
    assert parse().rollout.max_attempts == 3
    assert parse("--resample_error_records=false").rollout.max_attempts == 1
    assert parse("--resample_error_records=true", "--max_attempts=5").rollout.max_attempts == 5
    assert refusal("--resample_error_records=false", "--max_attempts=5").startswith(
        "--max_attempts: resample_error_records false means 1, not 5"
    )


# --- Pages -------------------------------------------------------------------------------------------------------


def test_the_pages_of_fates_are_up_to_date() -> None:
    for name, page in (("from_reference.md", from_reference()), ("options-owed.md", options_owed())):
        assert (DOCS / name).read_text(encoding="utf-8") == page, "run `python -m agentrl.config.pages`"


def test_every_kept_option_of_the_reference_has_its_default_there() -> None:
    assert [name for name in REFERENCE if name in KEPT and name not in THEIRS] == []
    assert [name for name in THEIRS if name not in KEPT] == []


@pytest.mark.parametrize("name", THEIRS)
def test_a_default_that_differs_has_a_reason_and_no_other_has_one(name: str) -> None:
    field, theirs = KEPT[name], THEIRS[name].default
    here = field.default if field.default is not dataclasses.MISSING else field.default_factory()
    nothing = (None, "", [], {}, "all")
    same = here == theirs or (here in nothing and theirs in nothing)
    reworded = {"db_connection_string", "max_steps", "min_turns", "preferred_sampling_params", "train_file"}
    assert same != bool(THEIRS[name].reason) or name in reworded, f"{name}: there {theirs!r}, here {here!r}"


def test_defaults_that_hugging_face_gives_are_those_of_the_installed_version() -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    later = {"learning_rate", "gradient_checkpointing"}  # the reference's own, and none where it was false before
    assert {name: THEIRS[name].default for name in THEIRS.keys() & theirs.keys() - later} == {
        name: theirs[name] for name in THEIRS.keys() & theirs.keys() - later
    }
