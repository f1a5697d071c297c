"""A model folder as a renderer: its tokenizer, its chat template, the tool-call format the template speaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl.chat.reply import ALIASES, FORMATS, format_named
from agentrl.chat.template import TemplateRenderer
from agentrl.errors import ConfigError

SIGNS: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3_coder_xml"),
    ("<|tool_call_start|>", "minicpm"),
    ("<｜tool▁call▁begin｜>", "deepseek_v3"),
    ("<|tool_calls_section_begin|>", "kimi_k2"),
    ("[TOOL_CALLS]", "mistral"),
    ("<tool_call>", "qwen"),
    ("<|python_tag|>", "llama3"),
    ("<|start_header_id|>", "llama3"),
    ("<|python_start|>", "pythonic"),
)
"""What a template writes, and the format that means; the first sign found decides."""


def load_renderer(
    path: str | Path, tool_call_parser: str = "auto", *, template_options: Mapping[str, Any] | None = None
) -> TemplateRenderer:
    """The renderer of the model in the folder ``path``; reads files only, never the network.

    Raises ``ConfigError`` for a folder without a tokenizer or a template, an unknown format, or a template that does
    not tell its format.
    """
    folder = Path(path)
    if not (folder / "tokenizer.json").is_file():
        raise ConfigError(f"there is no tokenizer.json in {folder}", setting="--model_name_or_path")
    if tool_call_parser != "auto":
        format_named(tool_call_parser)
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
    if not tokenizer.chat_template:
        raise ConfigError(f"the tokenizer in {folder} has no chat template", setting="--model_name_or_path")
    chosen = detect_format(tokenizer.chat_template) if tool_call_parser == "auto" else tool_call_parser
    return TemplateRenderer(
        tokenizer, format=chosen, eos_token_ids=end_tokens(folder), template_options=template_options
    )


def detect_format(template: str | Mapping[str, str]) -> str:
    """The format a template (or one of several) speaks; raises ``ConfigError`` when it does not tell."""
    source = template if isinstance(template, str) else "\n".join(template.values())
    for sign, name in SIGNS:
        if sign in source:
            return name
    raise ConfigError(
        f"the chat template does not tell its tool-call format; choose one of: {', '.join([*FORMATS, *ALIASES])}",
        setting="--tool_call_parser",
    )


def end_tokens(folder: Path) -> tuple[int, ...]:
    """End tokens of the generation config: models often have more than the tokenizer names."""
    file = folder / "generation_config.json"
    if not file.is_file():
        return ()
    found = json.loads(file.read_text(encoding="utf-8")).get("eos_token_id")
    return (found,) if isinstance(found, int) else tuple(found or ())
