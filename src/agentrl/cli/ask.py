"""``agentrl ask "QUESTION"``: one live episode, printed turn by turn: what the model writes, calls and is told.

Real MCP tools and the embedded engine in this process, or a running one (--engine_url). Without a model it is the
shipped small one, which knows sums of two numbers such as "What is 12 + 30?"; without tools it is the calculator.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.text import Text

from agentrl.chat import TemplateRenderer, load_renderer
from agentrl.cli.model_folder import with_model_folder
from agentrl.cli.preflight import check_model
from agentrl.cli.serve import build_engine
from agentrl.cli.view import message_text
from agentrl.config import RunConfig
from agentrl.engine import Engine
from agentrl.engine.pool import EnginePool
from agentrl.errors import AgentRLError, ConfigError, EngineOutage
from agentrl.models.tiny import TINY_MODEL_DIR
from agentrl.rollout.conversation import Conversation
from agentrl.rollout.episode import Episode, rollout
from agentrl.rollout.limits import Limits
from agentrl.tasks import task_messages
from agentrl.tools.mcp import McpToolset
from agentrl.tools.sources import parse_sources
from agentrl.types import DispatchedSamplingTask, Outcome, Record, Sampling, Task

DEFAULT_TOKENS = 1024
SHIPPED_MODEL = {"model_name_or_path": str(TINY_MODEL_DIR), "default_prompt": False, "max_new_tokens": 48}
EPISODE_OPTIONS = (
    "mcp_manager_url",
    "mcp_server_name",
    "default_prompt",
    "max_turns",
    "max_new_tokens",
    "max_prompt_tokens",
    "max_context",
    "tool_call_parser",
)


class EpisodeFailed(AgentRLError):
    """The episode broke: the engine or a tool server, not the model."""


def main(argv: Sequence[str]) -> int:
    question, flags = question_of(argv)
    config = with_defaults(flags)
    check_model(config)
    console = Console()
    record = asyncio.run(ask(config, question, console))
    if record.error is not None:
        raise EpisodeFailed(f"{record.error['where']}: {record.error['message']}")
    if record.outcome is Outcome.TIMEOUT:
        raise EpisodeFailed(f"no answer within --episode_timeout {config.rollout.episode_timeout:g} s")
    return 0


def question_of(argv: Sequence[str]) -> tuple[str, list[str]]:
    """The question is the first word of the command line; what follows are options."""
    if argv and not argv[0].startswith("-"):
        return argv[0], list(argv[1:])
    if any(word in ("-h", "--help") for word in argv):
        return "", ["--help"]
    raise ConfigError('the question comes first: agentrl ask "What is 12 + 30?" [--OPTION VALUE ...]')


def with_defaults(flags: Sequence[str]) -> RunConfig:
    """The options as given; what is left open is as in the run the model comes from, or as the shipped model wants."""
    say = Console(stderr=True).print
    given = with_model_folder(RunConfig.parse(flags, command='ask "QUESTION"', description=__doc__ or ""), say=say)
    path = given.model.model_name_or_path
    defaults = {"max_new_tokens": DEFAULT_TOKENS, "mcp_manager_url": ["builtin:calculator"]}
    defaults |= options_of_run(Path(path)) if path else SHIPPED_MODEL
    with tempfile.TemporaryDirectory(prefix="agentrl-ask-") as folder:
        file = Path(folder) / "defaults.yaml"
        file.write_text(yaml.safe_dump(defaults), encoding="utf-8")
        config = RunConfig.parse(["--config", str(file), *flags], command="ask")
    return replace(config, model=given.model) if path else config


def options_of_run(folder: Path) -> dict[str, Any]:
    """How the run of a checkpoint plays an episode; nothing for other folders."""
    file = folder.parent / "config.yaml"
    if not folder.name.startswith("checkpoint-") or not file.is_file():
        return {}
    saved = yaml.safe_load(file.read_text(encoding="utf-8"))
    return {name: saved[name] for name in EPISODE_OPTIONS if saved.get(name) not in (None, [])}


async def ask(config: RunConfig, question: str, console: Console) -> Record:
    """Play one episode; every exit closes the engine and the tool servers."""
    task = Task(task_id="ask", query=question, run="ask")
    renderer = load_renderer(config.model.model_name_or_path, tool_call_parser=config.rollout.tool_call_parser)
    with tempfile.TemporaryDirectory(prefix="agentrl-ask-") as logs:
        toolset = McpToolset(
            parse_sources(config.tools.mcp_manager_url),
            call_timeout_seconds=config.tools.tool_timeout,
            result_limit_chars=config.tools.tool_result_limit,
            log_dir=Path(logs),
        )
        engine: Engine | None = None
        try:
            await toolset.open()
            engine = engine_of(config)
            await require_ready(config, engine)
            session = toolset.session(task.id, servers=config.tools.mcp_server_name or None)
            console.print(f"tools: {', '.join(spec.name for spec in session.specs)}", style="dim", highlight=False)
            with console.status("thinking"):
                record = await rollout(
                    Episode(record=Record(task=task.id, slot=0, attempt=0), schema=task.answer_schema),
                    task_messages(task, default_prompt=config.tasks.default_prompt),
                    engine,
                    session,
                    Conversation(renderer),
                    Limits.from_options(config.rollout),
                    sampling_of(config, renderer),
                    printer(console, renderer),
                )
            await session.close()
        finally:
            if engine is not None:
                await engine.close()
            await toolset.close()
    show_end(console, record)
    return record


def engine_of(config: RunConfig) -> Engine:
    if config.engine.engine_url:
        return EnginePool(config.engine.engine_url)
    return build_engine(replace(config, engine=replace(config.engine, engine_slots=1)), version=0)


async def require_ready(config: RunConfig, engine: Engine) -> None:
    """A running engine that does not answer is said at once."""
    health = await engine.health()
    if not health.ready:
        urls = ", ".join(config.engine.engine_url)
        raise EngineOutage(f"--engine_url {urls}: {health.detail or 'serves no weights yet'}")


def sampling_of(config: RunConfig, renderer: TemplateRenderer) -> Sampling:
    """As held-out episodes are sampled: greedy unless ``eval_sampling_params`` say otherwise."""
    values: dict[str, Any] = config.rollout.eval_sampling_params
    return Sampling(
        max_new_tokens=config.rollout.max_new_tokens,
        temperature=float(values.get("temperature", 1.0)),
        top_p=float(values.get("top_p", 1.0)),
        top_k=int(values.get("top_k", 0)),
        seed=config.run.seed,
        stop_token_ids=renderer.stop_token_ids,
    )


def printer(console: Console, renderer: TemplateRenderer) -> Callable[[DispatchedSamplingTask], Any]:
    """Prints each turn when it is complete: new messages before it, the reply as sampled, what the tools said.

    Tool results are not shown again as messages of the turn after.
    """

    async def show(turn: DispatchedSamplingTask) -> None:
        for message in turn.new_messages:
            if message["role"] != "tool":
                console.print(message_text(message))
        text = renderer.tokenizer.decode(list(turn.token_ids), skip_special_tokens=True)
        console.print(Text("assistant  ", style="bold cyan") + Text(str(text).strip()))
        for result in turn.tool_results:
            status = "" if result.status == "ok" else f" ({result.status})"
            style = "dim" if result.status == "ok" else "red"
            console.print(
                Text("tool       ", style="bold") + Text(f"{result.name}{status}: {result.content}", style=style)
            )

    return show


def show_end(console: Console, record: Record) -> None:
    if record.outcome is Outcome.ANSWERED:
        console.print(Text("answer     ", style="bold green") + Text(str(record.final_answer), style="bold"))
    told = f"{record.outcome}: {record.num_turns} turns, {record.tool_calls} tool calls, "
    told += f"{record.sampled_tokens} tokens sampled, {record.seconds:.1f} s"
    console.print(told, style="dim", highlight=False)
