"""Who may import whom, read off the syntax tree, and which commands stay light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).resolve().parents[2] / "src"
BASE = {"types", "errors", "config", "telemetry"}

ALLOWED: dict[str, set[str]] = {
    "telemetry": set(),
    "chat": set(),
    "parallel": set(),
    "store": set(),
    "engine": set(),
    "tools": {"agentdock.supervisor"},
    "scoring": set(),
    "tasks": {"scoring"},
    "algo": set(),
    "batch": {"algo"},
    "rollout": {"tasks", "chat", "tools", "engine", "store", "scoring", "algo", "batch"},
    "simulate": {"rollout", "store", "engine", "tools", "chat"},
    "models": {"parallel", "engine.weights"},
    "weights": {"parallel", "engine.weights", "engine.base"},
    "trainer": {"batch", "algo", "models", "parallel", "weights", "store", "engine.base"},
    "cli": {"*"},
    "__main__": {"cli"},
    "agentdock": set(),
    "agenttoleap": {"rollout", "chat", "tools", "engine", "scoring", "store", "tasks"},
}
TORCH_FREE = (
    "agentrl.types agentrl.store agentrl.chat agentrl.tools agentrl.engine agentrl.tasks agentrl.scoring "
    "agentrl.rollout agentrl.simulate agentrl.algo agentrl.batch agentrl.config agentrl.cli agentrl.cli.sample "
    "agentrl.cli.run agentdock agenttoleap"
).split()


def modules() -> list[Path]:
    return sorted(SRC.rglob("*.py"))


def room_of(path: Path) -> str:
    package, *rest = path.relative_to(SRC).with_suffix("").parts
    if package != "agentrl":
        return package
    return rest[0]


def imported(path: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += [node.module or ""]
    return [name for name in names if name.split(".")[0] in ("agentrl", "agentdock", "agenttoleap")]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    room = room_of(path)
    allowed = ALLOWED.get(room, set())
    for name in imported(path):
        package, _, rest = name.partition(".")
        target = rest if package == "agentrl" else name
        inside = target.split(".")[0] in {room, *BASE, ""} if package == "agentrl" else package == room
        permitted = "*" in allowed or any(target == a or target.startswith(a + ".") for a in allowed)
        if room == "agentdock" and package != "agentdock":
            permitted = inside = False
        assert inside or permitted, f"{path.relative_to(SRC)} ({room}) may not import {name}"


def test_nobody_imports_cli() -> None:
    guilty = [
        p
        for p in modules()
        if room_of(p) not in ("cli", "__main__") and any(n.startswith("agentrl.cli") for n in imported(p))
    ]
    assert not guilty


def test_sampler_dock_and_evaluator_import_without_torch() -> None:
    code = (
        f"import sys; [__import__(m) for m in {TORCH_FREE!r}]; assert 'torch' not in sys.modules, 'torch was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
