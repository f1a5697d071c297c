"""What is refused across options, each with its message, and the numbers that follow from several options."""

import pytest

from agentrl.config import RunConfig
from agentrl.config.run import NOT_NEGATIVE, POSITIVE
from agentrl.errors import ConfigError


def parse(*argv: str) -> RunConfig:
    return RunConfig.parse(argv, command="test")


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as raised:
        parse(*argv)
    return str(raised.value)


@pytest.mark.parametrize("name", POSITIVE)
def test_what_must_be_above_zero_is_refused_at_zero_and_below(name: str) -> None:
    for value in ("0", "-1"):
        assert refusal(f"--{name}={value}").startswith(f"--{name}: expects a number above 0, got {value}")


@pytest.mark.parametrize("name", NOT_NEGATIVE)
def test_what_may_be_zero_is_refused_below(name: str) -> None:
    assert parse(f"--{name}=0").flat()[name] == 0
    assert refusal(f"--{name}=-1").startswith(f"--{name}: expects 0 or more, got -1")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--learning_rate=nan"], "--learning_rate: expects a number, got nan"),
        (["--is_cap=nan"], "--is_cap: expects a number, got nan"),
        (["--adam_beta1=1"], "--adam_beta1: expects 0 or more and less than 1, got 1.0"),
        (["--adam_beta2=-0.1"], "--adam_beta2: expects 0 or more and less than 1, got -0.1"),
        (["--warmup_ratio=5"], "--warmup_ratio: expects a part of all steps, 0 to 1, got 5.0"),
        (["--max_steps=0"], "--max_steps: expects -1 (as many as the tasks give) or 1 and more"),
        (["--max_steps=-2"], "--max_steps: expects -1 (as many as the tasks give) or 1 and more"),
        (["--port=70000"], "--port: expects 0 (any free one) to 65535, got 70000"),
        (["--device=gpu"], "--device: expects auto, cpu, cuda or cuda:N, got 'gpu'"),
        (["--cispo_cap_low=6"], "--cispo_cap_low: 6.0 is above cispo_cap_high 5.0"),
        (["--num_generations=1"], "--num_generations: a group needs 2 or more episodes for a baseline"),
        (["--repetition_early_stop_times=0"], "--repetition_early_stop_times: expects -1 (never) or 1 and more"),
        (["--sync_sampling", "--max_staleness=2"], "--max_staleness: sync_sampling means 0"),
        (
            ["--max_trained_count=4", "--retrained_interval=3"],
            "--max_trained_count: 4 uses, 3 steps apart, make a group up to (4 - 1) x 3 + 1 (max_staleness, at least 1)"
            " = 10 steps old at its last use, and rows older than drop_staleness 8 are dropped",
        ),
        (["--retrained_interval=2"], "--retrained_interval: has no effect on groups that are trained once"),
        (["--engine=scripted"], "--engine_script: --engine scripted and --engine_script need each other"),
        (["--engine_script=a:b"], "--engine_script: --engine scripted and --engine_script need each other"),
        (
            ["--groups_per_step=3", "--per_device_train_batch_size=4", "--num_generations=2"],
            "--groups_per_step: 3 disagrees with per_device_train_batch_size x gradient_accumulation_steps = 4 records "
            "= 2 groups of 2: give one of the two",
        ),
        (
            ['--preferred_sampling_params={"top_p": 0.9}', "--loss=MINIRL"],
            "--preferred_sampling_params: MINIRL compares log-probs of the whole distribution",
        ),
        (['--preferred_sampling_params={"top_k": 5}'], "--preferred_sampling_params: GRPO compares log-probs"),
        (
            ['--preferred_sampling_params={"temperature": 0}'],
            "--preferred_sampling_params: temperature 0 gives every sibling the same episode",
        ),
        (
            ['--preferred_sampling_params={"min_p": 0.1, "seed": 1}'],
            "--preferred_sampling_params: knows temperature, top_k, top_p; not min_p, seed",
        ),
        (
            ['--eval_sampling_params={"temperature": "hot"}'],
            "--eval_sampling_params: temperature expects a number of 0 or more, got 'hot'",
        ),
        (
            ['--eval_sampling_params={"temperature": true}'],
            "--eval_sampling_params: temperature expects a number of 0 or more, got True",
        ),
        (
            ['--eval_sampling_params={"temperature": NaN}'],
            "--eval_sampling_params: temperature expects a number of 0 or more, got nan",
        ),
        (
            ['--eval_sampling_params={"top_p": 1.5}'],
            "--eval_sampling_params: top_p expects a part above 0, at most 1, got 1.5",
        ),
        (
            ['--eval_sampling_params={"top_k": 1.5}'],
            "--eval_sampling_params: top_k expects a whole number, got 1.5",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_the_name_of_the_option(argv: list[str], message: str) -> None:
    assert refusal(*argv).startswith(message)


def test_evaluation_may_cut_the_distribution_and_training_may_name_what_is_off() -> None:
    config = parse('--eval_sampling_params={"top_p": 0.9, "top_k": 5}', '--preferred_sampling_params={"top_p": 1.0}')
    assert config.rollout.eval_sampling_params == {"top_p": 0.9, "top_k": 5}


@pytest.mark.parametrize(
    ("argv", "groups"),
    [
        ([], 1),
        (["--num_generations=3"], 3),
        (["--per_device_train_batch_size=4", "--gradient_accumulation_steps=6", "--num_generations=5"], 5),
        (["--groups_per_step=7"], 7),
        (["--groups_per_step=2", "--per_device_train_batch_size=4", "--num_generations=2"], 2),
    ],
)
def test_records_of_a_step_are_rounded_up_to_groups(argv: list[str], groups: int) -> None:
    assert parse(*argv).groups_per_step == groups


def test_a_microbatch_holds_batch_size_times_max_tokens_unless_it_is_given() -> None:
    config = parse("--per_device_train_batch_size=3", "--max_tokens=100")
    assert config.max_tokens_per_microbatch == 300
    assert parse("--max_tokens_per_microbatch=50").max_tokens_per_microbatch == 50


def test_synchronous_sampling_is_a_staleness_of_zero() -> None:
    assert parse().max_staleness == 1
    assert parse("--max_staleness=3").max_staleness == 3
    assert parse("--sync_sampling").max_staleness == 0


def test_the_constant_of_dr_grpo_is_max_new_tokens_unless_it_is_given() -> None:
    assert parse("--max_new_tokens=48").algo_options.loss_constant == 48
    assert parse("--loss_constant=7").algo_options.loss_constant == 7


def test_a_run_has_its_folder_and_store_below_the_output() -> None:
    config = parse("--run_name=a", "--output_dir=out")
    assert str(config.folder) == "out/a"
    assert config.store_url == "sqlite:///out/a/run.db"
    assert parse("--db_connection_string=sqlite:////x.db").store_url == "sqlite:////x.db"


def test_evaluation_needs_a_file_and_may_be_switched_off() -> None:
    assert not parse().evaluates
    assert parse("--eval_file=e.jsonl").evaluates
    assert not parse("--eval_file=e.jsonl", "--eval_strategy=no").evaluates
