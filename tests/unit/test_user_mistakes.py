"""What people get wrong before a run starts, and the message each gets: where it is, what was seen, the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_help import configured

from agentdock.spec import BUILTIN
from agentrl.chat import load_renderer
from agentrl.cli.exits import USAGE_ERROR
from agentrl.cli.main import command, main
from agentrl.cli.preflight import check_before_start
from agentrl.errors import ConfigError
from agentrl.models.tiny import TINY_MODEL_DIR

TASK = {"id": "a", "query": "1+2?", "answer": "3", "scorer": "exact"}


def task(**changed: object) -> str:
    row = {name: value for name, value in (TASK | changed).items() if value is not None}
    return json.dumps(row) + "\n"


def servers(**entry: object) -> str:
    return json.dumps({"mcpServers": {"sum": {"command": "sum-server"} | entry}})


FLAGS: dict[str, tuple[list[str], str]] = {
    "no name": (["--run_name="], "--run_name: a run needs a name"),
    "a typing error": (["--learning_rte=1"], "--learning_rte: unknown option; did you mean --learning_rate?"),
    "a short name": (["--lr=1e-5"], "--lr: unknown option; did you mean --learning_rate?"),
    "a name of elsewhere": (
        ["--batch_size=4"],
        "--batch_size: unknown option; did you mean --per_device_train_batch_size?",
    ),
    "correct spelling": (
        ["--loss_calculator=GRPO"],
        "--loss_calculator: unknown option; did you mean --loss_calculater?",
    ),
    "no value": (["--learning_rate"], "--learning_rate: expected one argument"),
    "a word for a number": (["--learning_rate=fast"], "--learning_rate: invalid float value: 'fast'"),
    "a rate of zero": (["--learning_rate=0"], "--learning_rate: expects a number above 0, got 0.0"),
    "percent for a part": (["--warmup_ratio=3"], "--warmup_ratio: expects a part of all steps, 0 to 1, got 3.0"),
    "no steps at all": (["--max_steps=0"], "--max_steps: expects -1 (as many as the tasks give) or 1 and more"),
    "a word too many": (["stray"], "stray belongs to no option: a value follows its --OPTION"),
    "a loss that is not there": (["--loss=PPO"], "--loss: invalid choice: 'PPO' (choose from 'GRPO', 'GSPO',"),
    "an estimator that is not there": (["--advantage_estimator=gae"], "(choose from 'leave_one_out', 'mean',"),
    "a preset against a loss": (
        ["--preset=minirl", "--loss=GRPO"],
        "--preset: minirl is a set for MINIRL, but --loss_calculater says GRPO: leave one of the two out",
    ),
    "a switch of another loss": (
        ["--skip_length_normalization"],
        "--skip_length_normalization: has no effect on a token-level loss: add --token_level_loss false",
    ),
    "temperature as a flag": (["--temperature=0.7"], '--temperature: --preferred_sampling_params \'{"temperature":'),
    "no JSON": (
        ["--preferred_sampling_params={temperature: 1}"],
        "--preferred_sampling_params: invalid JSON mapping value: '{temperature: 1}'",
    ),
    "a cut distribution": (
        ['--preferred_sampling_params={"top_p": 0.9}'],
        "make every ratio wrong: leave them out for training (eval_sampling_params may have them)",
    ),
    "greedy training": (
        ['--preferred_sampling_params={"temperature": 0}'],
        "--preferred_sampling_params: temperature 0 gives every sibling the same episode",
    ),
    "a typing error in JSON": (
        ['--preferred_sampling_params={"temprature": 1}'],
        "--preferred_sampling_params: knows temperature, top_k, top_p; not temprature",
    ),
    "a group of one": (["--num_generations=1"], "--num_generations: a group needs 2 or more episodes for a baseline"),
    "two sizes of a step": (
        ["--groups_per_step=3", "--per_device_train_batch_size=4"],
        "= 4 records = 2 groups of 2: give one of the two",
    ),
    "two kinds of pacing": (
        ["--sync_sampling", "--max_staleness=2"],
        "--max_staleness: sync_sampling means 0: leave one of the two out",
    ),
    "a list given twice": (
        ["--mcp_manager_url", "builtin:python", "--mcp_manager_url", "builtin:lookup"],
        "--mcp_manager_url: is given twice: put all its values after one",
    ),
    "tools over HTTP": (
        ["--mcp_manager_url=http://localhost:8000/mcpapi"],
        "use stdio: or a mcpServers file instead of http://localhost:8000/mcpapi",
    ),
    "a built-in server that is not there": (
        ["--mcp_manager_url=builtin:calc"],
        f"no built-in server 'calc'; there are {', '.join(BUILTIN)}",
    ),
    "a server without its kind": (
        ["--mcp_manager_url=calculator"],
        "'calculator' is neither stdio:COMMAND, builtin:NAME nor a file that exists",
    ),
    "a server nobody starts": (
        ["--mcp_manager_url=builtin:calculator", "--mcp_server_name=calc"],
        "--mcp_server_name: no tool server 'calc'; --mcp_manager_url gives calculator",
    ),
    "a format that is not there": (
        ["--tool_call_parser=hermez"],
        "--tool_call_parser: there is no tool-call format 'hermez'; choose one of: qwen,",
    ),
    "a database that is not there yet": (
        ["--db_connection_string=mongodb://localhost"],
        "--db_connection_string: mongodb:// arrives with the MongoDB backend; use sqlite:///PATH",
    ),
    "a path for a URL": (
        ["--db_connection_string=run.db"],
        "--db_connection_string: expected sqlite:///PATH, got 'run.db'",
    ),
    "half precision": (["--torch_dtype=bfloat16"], "slower on a CPU): leave the option out"),
    "half precision by its switch": (["--bf16"], "--bf16: true is not built yet (owed by trainer): training computes"),
    "a device that is not there": (["--device=gpu"], "--device: expects auto, cpu, cuda or cuda:N, got 'gpu'"),
    "a hub's name for a folder": (
        ["--model_name_or_path=Qwen/Qwen3-4B"],
        "Qwen/Qwen3-4B is not the folder of a model: it has no config.json, and no complete checkpoint-N "
        "(download a model of a hub first)",
    ),
    "a file that is not there": (["--train_file=none.jsonl"], "--train_file: no such file: none.jsonl"),
    "a held-out file that is not there": (["--eval_file=none.jsonl"], "--eval_file: no such file: none.jsonl"),
    "a checkpoint that is not there": (
        ["--resume_from_checkpoint=checkpoint-5"],
        "--resume_from_checkpoint: no such folder: checkpoint-5; auto takes the newest",
    ),
    "a module that is not there": (["--scorer_module=nothere"], "--scorer_module: 'nothere' cannot be imported:"),
    "tensor parallelism": (["--tp_size=4"], "--tp_size: 4 is not built yet (owed by trainer): leave it out"),
    "DeepSpeed": (["--deepspeed=zero3.json"], "--deepspeed: start with torchrun or accelerate launch"),
    "attempts that contradict": (
        ["--resample_error_records=false", "--max_attempts=3"],
        "--max_attempts: resample_error_records false means 1, not 3: leave one of the two out",
    ),
    "a file of options that is not there": (["--config", "none.yaml"], "--config none.yaml: cannot be read: No such"),
    "no file after the flag": (["--config"], "--config: expects the path of a YAML file"),
}

FILES: dict[str, tuple[str, str, str]] = {
    "an unknown key": ("run.yaml", "seed: 1\nstepz: 1\n", "--config run.yaml, line 2: unknown key 'stepz'"),
    "a key of elsewhere": ("run.yaml", "lr: 1\n", "line 1: unknown key 'lr'; did you mean learning_rate?"),
    "a key twice": ("run.yaml", "seed: 1\nseed: 2\n", "line 2: seed is there already, in line 1"),
    "a list for a number": ("run.yaml", "seed: [1]\n", "line 1: seed expects one value, found a list"),
    "a key without value": ("run.yaml", "seed:\n", "line 1: seed has no value: give one, or leave the key out"),
    "no YAML": ("run.yaml", "run_name: [a\n", "--config run.yaml: is not YAML:"),
    "a list for a mapping": ("run.yaml", "- seed\n", "expects NAME: VALUE lines, found a list"),
    "a row cut short": ("t.jsonl", '{"id": "a"\n', "t.jsonl, line 1: invalid json: no valid JSON: Expecting ','"),
    "no question": ("t.jsonl", task(query=None), "t.jsonl, line 1, field query: missing: give the question"),
    "no answer": ("t.jsonl", task(answer=None), "t.jsonl, line 1, field answer: missing: scorer 'exact' needs it"),
    "an id twice": (
        "t.jsonl",
        task() * 2,
        "t.jsonl, line 2, field id: duplicate: the id 'a' is already used in line 1",
    ),
    "no scorer and no judge": ("t.jsonl", task(scorer=None), "set scorer: exact, math, numeric, contains or f1"),
    "a scorer misspelt": ("t.jsonl", task(scorer="exakt"), "field scorer: unknown: 'exakt' is not one of agentcpm,"),
    "an object for an answer": (
        "t.jsonl",
        task(answer={"x": 1}),
        "field answer: wrong type: an answer is text, number",
    ),
    "brackets round a tag": (
        "t.jsonl",
        task(answer_schema="<answer>"),
        "'<answer>' is not boxed and not the bare name",
    ),
    "a name for a list of tools": (
        "t.jsonl",
        task(tools="sum"),
        "field tools: wrong type: tools is a list of tool names",
    ),
    "an empty file": ("t.jsonl", "", "t.jsonl: empty file: the file holds no task"),
    "servers under another key": (
        "mcp.json",
        '{"servers": {}}',
        "--mcp_manager_url: mcp.json: key mcpServers is missing or empty; expected servers by name",
    ),
    "a key a server has not": (
        "mcp.json",
        servers(arg=[]),
        "mcp.json: mcpServers.sum.arg is not known; known keys are",
    ),
    "a number in an environment": ("mcp.json", servers(env={"N": 1}), "mcpServers.sum.env.N is int 1; expected a text"),
    "a server over HTTP": ("mcp.json", servers(url="http://x"), "mcpServers.sum.url: HTTP tool sources arrive with"),
    "no JSON of servers": ("mcp.json", "{,}", "mcp.json: not valid JSON: Expecting property name enclosed in double"),
}
FLAG_OF_FILE = {"run.yaml": "--config", "t.jsonl": "--train_file", "mcp.json": "--mcp_manager_url"}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_text(task())


def refusal(attempt: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as raised:
        attempt()
    return str(raised.value)


def before_start(*flags: str) -> str:
    return refusal(lambda: check_before_start(configured(Path("output"), "--train_file=train.jsonl", *flags)))


def test_there_are_at_least_forty() -> None:
    assert len(FLAGS) + len(FILES) >= 40


def test_what_is_right_is_not_refused() -> None:
    check_before_start(configured(Path("output"), "--train_file=train.jsonl", "--mcp_manager_url=builtin:calculator"))
    assert not Path("output").exists()


@pytest.mark.parametrize("mistake", FLAGS)
def test_a_wrong_flag_is_named_with_the_way_out(mistake: str) -> None:
    flags, message = FLAGS[mistake]
    assert message in before_start(*flags)
    assert not Path("output").exists()


@pytest.mark.parametrize("mistake", FILES)
def test_a_wrong_file_is_named_with_the_place_and_the_way_out(mistake: str) -> None:
    name, content, message = FILES[mistake]
    Path(name).write_text(content)
    assert message in before_start(FLAG_OF_FILE[name], name)
    assert not Path("output").exists()


def test_a_model_without_chat_template_or_with_one_that_tells_nothing_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY_MODEL_DIR, model)
    (model / "chat_template.jinja").unlink()
    assert refusal(lambda: load_renderer(model)).endswith("has no chat template")
    (model / "chat_template.jinja").write_text("{{ messages }}")
    assert "--tool_call_parser: the chat template does not tell its tool-call format; choose one of: qwen," in refusal(
        lambda: load_renderer(model)
    )


@pytest.mark.parametrize("kept", [0, 20, 100_000])
def test_weights_that_were_cut_off_are_refused_with_their_file_and_the_way_out(tmp_path: Path, kept: int) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY_MODEL_DIR, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:kept])
    message = before_start(f"--model_name_or_path={model}")
    assert f"--model_name_or_path: {weights} is damaged or cut off (" in message
    assert message.endswith("copy or download the model again, or name another checkpoint")


def test_a_model_without_weights_is_no_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model"
    shutil.copytree(TINY_MODEL_DIR, model)
    (model / "model.safetensors").unlink()
    assert main(["serve", f"--model_name_or_path={model}", "--port=0"]) == USAGE_ERROR
    assert f"agentrl: error: --model_name_or_path: {model} does not load: " in capfd.readouterr().err


def test_a_command_misspelt_is_named_with_the_nearest() -> None:
    assert refusal(lambda: command("trian")).startswith("unknown command 'trian'; did you mean agentrl train?")
