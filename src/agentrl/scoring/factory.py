"""Names to scorers: the built-in ones, those a user registers, and ``module:attr``."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentrl.errors import ConfigError
from agentrl.scoring import builtin
from agentrl.scoring.calls import ScorerFunction, takes_config
from agentrl.scoring.imports import resolve


class Place(StrEnum):
    """Where a scorer runs."""

    HERE = "here"
    MATH = "math"
    WORKER = "worker"
    LOOP = "loop"
    THREAD = "thread"
    JUDGE = "judge"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorer:
    """``path`` is ``module:attr`` for those that run in a worker."""

    name: str
    place: Place
    function: ScorerFunction | None = None
    path: str = ""
    needs_truth: bool = True


BUILT_IN: Mapping[str, Scorer] = {
    scorer.name: scorer
    for scorer in (
        Scorer(name="math", place=Place.MATH),
        Scorer(name="exact", place=Place.HERE, function=builtin.exact),
        Scorer(name="numeric", place=Place.HERE, function=builtin.numeric),
        Scorer(name="contains", place=Place.HERE, function=builtin.contains),
        Scorer(name="f1", place=Place.HERE, function=builtin.f1),
        Scorer(name="none", place=Place.NONE, needs_truth=False),
        Scorer(name="agentcpm", place=Place.JUDGE),
        Scorer(name="asearcher", place=Place.JUDGE),
        Scorer(name="llm_judge", place=Place.JUDGE),
    )
}


class MCPScorerFactory:
    """One registry per process; a module named by ``--scorer_module`` fills it when it is imported."""

    _registered: dict[str, Scorer] = {}  # noqa: RUF012 - the registry is meant to be shared

    @classmethod
    def register_scorer(cls, name: str, function: ScorerFunction, *, needs_truth: bool | None = None) -> None:
        """Make ``function`` known as ``name``; a name registered again is replaced, a built-in one cannot be.

        ``needs_truth`` defaults to the function's attribute of that name, else True: tasks without ``answer`` are
        refused at load. Raise ``ConfigError``.
        """
        if name in BUILT_IN or ":" in name or not name.strip():
            raise ConfigError(f"the scorer name {name!r} cannot be registered: it is built in, blank or has a colon")
        cls._registered[name] = scorer_of(name, function, needs_truth)

    @classmethod
    def get(cls, scorer: Any) -> Scorer:
        """The scorer of a name, of ``module:attr`` or of a function. Raise ``ConfigError`` naming the known ones."""
        if callable(scorer):
            return scorer_of(getattr(scorer, "__qualname__", type(scorer).__name__), scorer, None)
        if not isinstance(scorer, str):
            raise ConfigError(f"a scorer is a name or 'module:attr', got {scorer!r:.100}", setting="scorer")
        if (known := BUILT_IN.get(scorer) or cls._registered.get(scorer)) is not None:
            return known
        if scorer.startswith("tool:"):
            raise ConfigError(f"{scorer!r}: scores given by a tool server are not supported yet", setting="scorer")
        if ":" in scorer:
            return imported_scorer(scorer)
        near = difflib.get_close_matches(scorer, cls.names(), n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"unknown scorer {scorer!r}; {hint}known: {', '.join(cls.names())}, or 'module:attr' of a function",
            setting="scorer",
        )

    @classmethod
    def names(cls) -> list[str]:
        return [*BUILT_IN, *cls._registered]

    @classmethod
    def needs_truth(cls, scorer: Any) -> bool:
        """Whether tasks of this scorer need an ``answer``. Raise ``ConfigError`` for an unknown scorer."""
        return cls.get(scorer).needs_truth


def require_scorer(scorer: Any) -> Scorer:
    """A scorer this process can run; raise ``ConfigError`` saying what is missing."""
    found = MCPScorerFactory.get(scorer)
    if found.place is Place.JUDGE:
        raise ConfigError(
            f"the scorer {found.name!r} asks a judge model and needs scorer_agent, which this version cannot use yet; "
            "set scorer: exact, math, numeric, contains or f1 in the tasks",
            setting="scorer",
        )
    return found


def load_scorer_module(module: str) -> None:
    """Import the module that registers scorers; an empty name does nothing. Raise ``ConfigError``."""
    if module:
        imported(module, "--scorer_module")


def imported_scorer(path: str) -> Scorer:
    module, _, attribute = path.partition(":")
    imported(module, "scorer")
    try:
        function = resolve(path)
    except AttributeError:
        raise ConfigError(f"{path!r}: the module {module!r} has no {attribute!r}", setting="scorer") from None
    if not callable(function):
        raise ConfigError(f"{path!r} is a {type(function).__name__}, not a function", setting="scorer")
    return scorer_of(path, function, None, path=path)


def imported(module: str, setting: str) -> None:
    try:
        importlib.import_module(module)
    # A user's module may raise anything while it is imported; the person reads which one and what.
    except Exception as error:
        raise ConfigError(f"{module!r} cannot be imported: {type(error).__name__}: {error}", setting=setting) from error


def scorer_of(name: str, function: ScorerFunction, needs_truth: bool | None, *, path: str = "") -> Scorer:
    if not callable(function):
        raise ConfigError(f"the scorer {name!r} is a {type(function).__name__}, not a function", setting="scorer")
    try:
        takes_config(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the scorer {name!r} {error}", setting="scorer") from error
    needed = bool(getattr(function, "needs_truth", True)) if needs_truth is None else needs_truth
    if is_async(function):
        return Scorer(name=name, place=Place.LOOP, function=function, needs_truth=needed)
    if path := path or import_path(function):
        return Scorer(name=name, place=Place.WORKER, function=function, path=path, needs_truth=needed)
    return Scorer(name=name, place=Place.THREAD, function=function, needs_truth=needed)


def is_async(function: ScorerFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def import_path(function: ScorerFunction) -> str:
    """``module:attr`` under which another process finds ``function``, or nothing."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    if not module or module == "__main__" or "<" in name:
        return ""
    found: Any = sys.modules.get(module)
    if found is None or getattr(found, "__spec__", None) is None:
        return ""
    for part in name.split("."):
        found = getattr(found, part, None)
    return f"{module}:{name}" if found is function else ""
