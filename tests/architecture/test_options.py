"""Every option has an effect: the test that fails when it has none, and the page that describes it."""

import ast
import dataclasses
from functools import cache
from pathlib import Path

import pytest

from agentrl.cli.docs import PAGE, page
from agentrl.config.run import GROUPS

TESTS = Path(__file__).resolve().parents[1]

CONFIG = "unit/test_config_run.py::"
EVALUATION = "unit/test_cli_evaluation.py::"
FEED = "unit/test_cli_feed.py::"
FEEDER = "unit/test_cli_feeder.py::"
PREFLIGHT = "unit/test_cli_preflight.py::"
ROLLOUT = "unit/test_cli_rollout_options.py::"
LAUNCH = "unit/test_ranks_launch.py::"
CHECKPOINT = "unit/test_trainer_checkpoint.py::"
SERVE = "unit/test_cli_serve_options.py::"
TRAIN = "unit/test_cli_train_options.py::"
SUPERVISE = "unit/test_cli_supervise.py::"
VIEW = "unit/test_cli_view.py::"
BUDGET = "unit/test_cli_budget.py::"
FILTERS = "unit/test_config_filters.py::"
WEIGHTS = TRAIN + "test_it_changes_the_weights_after_three_steps[{}]"

EFFECTS = {
    "run_name": CONFIG + "test_a_run_has_its_folder_and_store_below_the_output",
    "output_dir": CONFIG + "test_a_run_has_its_folder_and_store_below_the_output",
    "db_connection_string": CONFIG + "test_a_run_has_its_folder_and_store_below_the_output",
    "seed": ROLLOUT + "test_seed_decides_what_is_drawn_and_nothing_else_does",
    "enable_sampling": TRAIN + "test_enable_sampling_starts_the_node_around_training",
    "resume_from_checkpoint": TRAIN + "test_resume_from_checkpoint_goes_on_where_it_stood",
    "logging_steps": VIEW + "test_logging_steps_thins_the_lines_and_keeps_the_last",
    "model_name_or_path": PREFLIGHT + "test_a_folder_that_is_no_model_is_refused_with_what_it_lacks",
    "model_name": SERVE + "test_host_port_and_model_name_are_what_the_run_is_told",
    "torch_dtype": SERVE + "test_torch_dtype_is_that_of_the_served_weights",
    "gradient_checkpointing": TRAIN + "test_gradient_checkpointing_recomputes_activations",
    "trust_remote_code": TRAIN + "test_trust_remote_code_runs_the_code_of_a_model",
    "device": SERVE + "test_device_is_taken_or_refused",
    "train_file": FEED + "test_a_sampler_alone_pushes_the_files_it_is_given_and_ends_the_streams",
    "eval_file": FEED + "test_a_sampler_alone_pushes_the_files_it_is_given_and_ends_the_streams",
    "num_train_epochs": ROLLOUT + "test_num_train_epochs_samples_every_task_so_often",
    "task_sampling": FEEDER + "test_task_sampling_difficulty_spends_the_groups_where_there_is_signal",
    "scorer_module": PREFLIGHT + "test_scorer_module_makes_its_scorers_known",
    "default_prompt": ROLLOUT + "test_default_prompt_asks_for_the_answer_format",
    "num_generations": ROLLOUT + "test_num_generations_is_the_size_of_a_training_group",
    "eval_generations": ROLLOUT + "test_eval_generations_is_the_size_of_a_held_out_group",
    "max_turns": ROLLOUT + "test_max_turns_ends_an_episode",
    "max_new_tokens": ROLLOUT + "test_max_new_tokens_cuts_a_reply",
    "max_prompt_tokens": ROLLOUT + "test_max_prompt_tokens_ends_an_episode",
    "episode_timeout": ROLLOUT + "test_episode_timeout_ends_an_episode",
    "preferred_sampling_params": ROLLOUT + "test_sampling_params_are_those_of_the_split",
    "eval_sampling_params": ROLLOUT + "test_sampling_params_are_those_of_the_split",
    "tool_call_parser": ROLLOUT + "test_tool_call_parser_decides_what_is_a_call",
    "repetition_early_stop_times": ROLLOUT + "test_repetition_early_stop_times_ends_an_episode_that_repeats_itself",
    "max_silent_turns": ROLLOUT + "test_max_silent_turns_ends_an_episode_without_call_and_answer",
    "target_concurrency": ROLLOUT + "test_target_concurrency_is_the_number_of_requests_in_flight",
    "max_concurrent_samples_per_process": FILTERS
    + "test_max_concurrent_samples_per_process_bounds_the_episodes_at_once",
    "resample_error_records": FILTERS + "test_resample_error_records_plays_a_broken_slot_again",
    "max_attempts": ROLLOUT + "test_max_attempts_bounds_the_attempts_at_a_broken_slot",
    "group_deadline": ROLLOUT + "test_group_deadline_abandons_stragglers",
    "scorer_timeout": ROLLOUT + "test_scorer_timeout_leaves_a_slow_answer_unscored",
    "mcp_manager_url": ROLLOUT + "test_mcp_manager_url_starts_servers_whose_results_tool_result_limit_cuts",
    "mcp_server_name": ROLLOUT + "test_mcp_server_name_hides_the_tools_of_other_servers",
    "tool_timeout": ROLLOUT + "test_tool_timeout_ends_a_call",
    "tool_result_limit": ROLLOUT + "test_mcp_manager_url_starts_servers_whose_results_tool_result_limit_cuts",
    "max_staleness": ROLLOUT + "test_max_staleness_bounds_the_groups_that_start_before_a_step",
    "max_trained_count": ROLLOUT + "test_reuse_paces_sampling_by_the_steps_that_take_fresh_groups",
    "retrained_interval": TRAIN + "test_reuse_is_asked_of_the_store",
    "drop_staleness": TRAIN + "test_staleness_order_and_groups_are_asked_of_the_store",
    "sync_sampling": TRAIN + "test_staleness_order_and_groups_are_asked_of_the_store",
    "budget": BUDGET + "test_budget_ends_sampling_at_its_limit",
    "prices": BUDGET + "test_prices_say_what_was_spent_and_let_money_be_limited",
    "budget_action": BUDGET + "test_budget_action_decides_what_follows_at_the_limit",
    "preset": FILTERS + "test_preset_sets_what_is_recommended_and_what_is_given_wins",
    "loss_calculater": WEIGHTS.format("loss_calculater"),
    "advantage_estimator": ROLLOUT + "test_adv_scaling_and_advantage_estimator_reach_the_rows",
    "drop_zero_advantage": ROLLOUT + "test_drop_zero_advantage_decides_whether_equal_scores_are_trained",
    "dynamic_sampling": FEEDER + "test_dynamic_sampling_fills_every_planned_step_and_without_it_steps_are_lost",
    "dynamic_sampling_limit": FEEDER + "test_dynamic_sampling_limit_trains_smaller_steps_and_counts_what_is_missing",
    "adv_scaling": ROLLOUT + "test_adv_scaling_and_advantage_estimator_reach_the_rows",
    "minimal_advantage": FILTERS + "test_minimal_advantage_leaves_out_what_is_lower_and_zero_is_a_value",
    "skip_non_positive_advantage": FILTERS + "test_skip_non_positive_advantage_trains_what_is_above_zero",
    "min_turns": FILTERS + "test_min_turns_leaves_out_right_answers_in_fewer_calls",
    "epsilon": WEIGHTS.format("epsilon"),
    "epsilon_higher": WEIGHTS.format("epsilon_higher"),
    "token_level_loss": WEIGHTS.format("token_level_loss"),
    "skip_length_normalization": WEIGHTS.format("skip_length_normalization"),
    "out_of_bound_mask": WEIGHTS.format("out_of_bound_mask"),
    "strict_in_bound": WEIGHTS.format("strict_in_bound"),
    "importance_weight_cap_ratio": WEIGHTS.format("importance_weight_cap_ratio"),
    "out_of_date_decay": WEIGHTS.format("out_of_date_decay"),
    "is_cap": WEIGHTS.format("is_cap"),
    "cispo_cap_low": WEIGHTS.format("cispo_cap_low"),
    "cispo_cap_high": WEIGHTS.format("cispo_cap_high"),
    "loss_constant": WEIGHTS.format("loss_constant"),
    "beta1": WEIGHTS.format("beta1"),
    "beta2": WEIGHTS.format("beta2"),
    "learning_rate": WEIGHTS.format("learning_rate"),
    "weight_decay": WEIGHTS.format("weight_decay"),
    "adam_beta1": WEIGHTS.format("adam_beta1"),
    "adam_beta2": WEIGHTS.format("adam_beta2"),
    "adam_epsilon": WEIGHTS.format("adam_epsilon"),
    "max_grad_norm": WEIGHTS.format("max_grad_norm"),
    "lr_scheduler_type": WEIGHTS.format("lr_scheduler_type"),
    "warmup_steps": WEIGHTS.format("warmup_steps"),
    "warmup_ratio": WEIGHTS.format("warmup_ratio"),
    "max_steps": WEIGHTS.format("max_steps"),
    "per_device_train_batch_size": TRAIN + "test_a_smaller_microbatch_means_more_of_them",
    "gradient_accumulation_steps": TRAIN + "test_staleness_order_and_groups_are_asked_of_the_store",
    "data_parallel_size": LAUNCH + "test_the_saved_configuration_says_the_ranks_to_a_sampler",
    "groups_per_step": ROLLOUT + "test_groups_per_step_admits_whole_steps",
    "max_tokens": WEIGHTS.format("max_tokens"),
    "max_tokens_per_microbatch": TRAIN + "test_a_smaller_microbatch_means_more_of_them",
    "save_steps": TRAIN + "test_save_steps_and_save_total_limit_decide_what_is_kept",
    "save_total_limit": TRAIN + "test_save_steps_and_save_total_limit_decide_what_is_kept",
    "save_only_model": CHECKPOINT + "test_the_model_alone_is_saved_without_what_a_resume_needs",
    "eval_strategy": PREFLIGHT + "test_tasks_are_read_and_held_out_ones_only_where_they_are_evaluated",
    "eval_steps": EVALUATION + "test_rounds_fall_due_by_eval_steps_and_those_passed_over_are_told",
    "engine": SERVE + "test_engine_and_engine_script_choose_who_answers",
    "engine_script": SERVE + "test_engine_and_engine_script_choose_who_answers",
    "engine_url": TRAIN + "test_publish_timeout_ends_the_wait_for_an_engine_that_engine_url_names",
    "engine_slots": SERVE + "test_engine_slots_are_decoded_together",
    "max_context": SERVE + "test_max_context_refuses_a_longer_prompt",
    "publish_timeout": TRAIN + "test_publish_timeout_ends_the_wait_for_an_engine_that_engine_url_names",
    "wait_timeout": TRAIN + "test_wait_timeout_ends_the_wait_for_a_batch",
    "sampler_timeout": TRAIN + "test_sampler_timeout_ends_the_wait_for_samplers_that_died",
    "heartbeat_timeout": SUPERVISE + "test_heartbeat_timeout_names_and_kills_a_child_that_lives_and_no_longer_beats",
    "host": SERVE + "test_host_port_and_model_name_are_what_the_run_is_told",
    "port": SERVE + "test_host_port_and_model_name_are_what_the_run_is_told",
    "await_weights": SERVE + "test_await_weights_false_serves_the_model_of_a_run_as_it_lies",
}
"""Option -> the test that shows what it changes."""

OPTIONS = {field.name: field for group in GROUPS for field in dataclasses.fields(group)}


def test_every_option_has_a_test_of_its_effect() -> None:
    assert EFFECTS.keys() == OPTIONS.keys()


@pytest.mark.parametrize("option", EFFECTS)
def test_the_test_of_an_effect_exists_and_names_its_option(option: str) -> None:
    path, _, name = EFFECTS[option].partition("::")
    name, _, case = name.rstrip("]").partition("[")
    functions, texts = contents_of(TESTS / path)
    assert name in functions, f"there is no {EFFECTS[option]}"
    assert not case or case in texts, f"{path} has no case {case!r}"
    used = {text.lstrip("-").partition("=")[0] for text in texts}
    assert option in used, f"{path} never sets {option}"


@cache
def contents_of(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Names of the functions of a module; its text constants and names of arguments."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    functions = [node.name for node in nodes if isinstance(node, ast.FunctionDef)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    keywords = [node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg]
    return frozenset(functions), frozenset(texts + keywords)


@pytest.mark.parametrize("option", OPTIONS)
def test_the_help_of_an_option_says_something_and_fits_a_line(option: str) -> None:
    text = OPTIONS[option].metadata["help"]
    assert 4 <= len(text) <= 100, text
    assert not text.endswith(".")


def test_the_page_of_options_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m agentrl.cli.docs`"
