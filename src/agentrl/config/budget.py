"""``--budget`` and ``--prices``: what a run may spend, and what that costs; computed from the totals of the ledger."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentrl.config.names import nearest
from agentrl.errors import ConfigError

BUDGET, PRICES = "--budget", "--prices"
BUDGET_REACHED = "run/budget"
"""Key of the store's state: {used_up, action, at} once a limit was reached; null before, and when a start raised it."""
TOOL_CALLS = "calls/tool:"
"""Totals of this prefix are calls by tool."""
PLAIN = ("tokens", "prompt_tokens", "sampled_tokens", "calls", "tool_calls", "money")
OF_TOOL = re.compile(r"tool_calls/(\S+)")
OF_JUDGE = ("judge_tokens", "judge_calls")
MODEL_PRICES = ("per_million_prompt_tokens", "per_million_sampled_tokens", "per_call")
TOOL_PRICES = ("per_call",)
ANY_TOOL = "*"
MILLION = 1e6
TOKENS = ("prompt_tokens", "sampled_tokens")

Totals = Mapping[str, float]
"""As ``Store.spending`` gives them: calls, prompt_tokens, sampled_tokens, calls/tool:NAME."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Of the run's model and of tools; a tool without a price of its own costs what ``*`` says, else nothing."""

    currency: str
    model: Mapping[str, float]
    tools: Mapping[str, float]

    @property
    def costs_anything(self) -> bool:
        return any((*self.model.values(), *self.tools.values()))

    def cost(self, totals: Totals) -> float:
        """Of everything in ``totals``."""
        tokens = sum(self.model[f"per_million_{kind}"] * totals.get(kind, 0.0) for kind in TOKENS) / MILLION
        return tokens + self.model["per_call"] * totals.get("calls", 0.0) + sum(self._of_tools(totals))

    def _of_tools(self, totals: Totals) -> list[float]:
        free = self.tools.get(ANY_TOOL, 0.0)
        return [self.tools.get(tool, free) * num for tool, num in calls_by_tool(totals).items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """``limits`` by name; without any nothing is limited, and ``prices`` still say what was spent."""

    limits: Mapping[str, float] = field(default_factory=dict)
    prices: Prices | None = None
    action: str = "stop"

    def used(self, totals: Totals) -> dict[str, float]:
        """What was used of each limit."""
        return {name: self.amount(name, totals) for name in self.limits}

    def used_up(self, totals: Totals) -> str:
        """The limit that is reached, in words; an empty text while there is something left of all of them."""
        reached = (name for name, used in self.used(totals).items() if used >= self.limits[name])
        name = next(reached, None)
        return "" if name is None else self.in_words(name, totals)

    def in_words(self, name: str, totals: Totals) -> str:
        """``2,000,118 of 2,000,000 tokens``."""
        used, most = (self.shown(name, amount) for amount in (self.amount(name, totals), self.limits[name]))
        return f"{used} of {most} {self.unit(name)}"

    def unit(self, name: str) -> str:
        if name == "money" and self.prices is not None:
            return self.prices.currency
        of_tool = OF_TOOL.fullmatch(name)
        words = {"calls": "model calls", "tool_calls": "tool calls"}
        return f"calls to {of_tool[1]}" if of_tool else words.get(name, name.replace("_", " "))

    def shown(self, name: str, amount: float) -> str:
        return money_text(amount) if name == "money" else f"{amount:,.0f}"

    def amount(self, name: str, totals: Totals) -> float:
        if of_tool := OF_TOOL.fullmatch(name):
            return totals.get(f"{TOOL_CALLS}{of_tool[1]}", 0.0)
        if name == "tokens":
            return sum(totals.get(kind, 0.0) for kind in TOKENS)
        if name == "tool_calls":
            return sum(calls_by_tool(totals).values())
        if name == "money":
            assert self.prices is not None
            return self.prices.cost(totals)
        return totals.get(name, 0.0)

    @property
    def tools(self) -> list[str]:
        """Tools that have a limit of their own."""
        return [found[1] for name in self.limits if (found := OF_TOOL.fullmatch(name))]


def money_text(amount: float) -> str:
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"


def calls_by_tool(totals: Totals) -> dict[str, float]:
    return {name.removeprefix(TOOL_CALLS): num for name, num in totals.items() if name.startswith(TOOL_CALLS)}


# --- --budget --------------------------------------------------------------------------------------------------------


def read_limits(text: str) -> dict[str, float]:
    """``tokens=2e6,tool_calls/search=500`` by name; raise ``ConfigError`` for what limits nothing."""
    limits: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ConfigError(f"expects NAME=AMOUNT,..., got {part!r}", setting=BUDGET)
        check_name(name)
        if name in limits:
            raise ConfigError(f"{name} is given twice", setting=BUDGET)
        limits[name] = read_amount(name, amount)
    return limits


def check_name(name: str) -> None:
    if name in OF_JUDGE:
        raise ConfigError(f"{name}: there is no judge model yet, so it would limit nothing", setting=BUDGET)
    if name not in PLAIN and not OF_TOOL.fullmatch(name):
        known = ", ".join((*PLAIN, "tool_calls/TOOL"))
        raise ConfigError(f"unknown limit {name!r}{nearest(name, PLAIN)} (it knows {known})", setting=BUDGET)


def read_amount(name: str, text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not (amount > 0 and math.isfinite(amount)):
        raise ConfigError(f"{name} expects a number above 0, as 2e6, got {text!r}", setting=BUDGET)
    return amount


# --- --prices --------------------------------------------------------------------------------------------------------


def read_prices(path: Path, model: str) -> Prices:
    """Prices of ``model`` and of all tools; raise ``ConfigError`` naming file, table and key."""
    tables = read_toml(path)
    check_keys(path, "", tables, ("currency", "models", "tools"))
    currency = tables.get("currency", "money")
    if not isinstance(currency, str) or not currency:
        raise ConfigError(f"{path}: currency expects a text, as EUR, got {currency!r}", setting=PRICES)
    models, tools = table(path, "models", tables), table(path, "tools", tables)
    if model not in models:
        known = f"; it has {', '.join(models)}" if models else ""
        raise ConfigError(
            f"{path} has no table [models.{key_of(model)}], the model of this run (--model_name){known}", setting=PRICES
        )
    return Prices(
        currency=currency,
        model=numbers(path, f"models.{model}", table(path, model, models), MODEL_PRICES),
        tools={
            tool: numbers(path, f"tools.{tool}", table(path, tool, tools), TOOL_PRICES)["per_call"] for tool in tools
        },
    )


def read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", setting=PRICES) from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", setting=PRICES) from error


def key_of(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'


def check_keys(path: Path, where: str, found: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            place = f"[{where}]: " if where else ""
            raise ConfigError(f"{path}: {place}unknown key {key!r}{nearest(key, known)}", setting=PRICES)


def table(path: Path, name: str, parent: Mapping[str, Any]) -> Mapping[str, Any]:
    found = parent.get(name, {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {name} expects a table, got {found!r}", setting=PRICES)
    return found


def numbers(path: Path, where: str, found: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, float]:
    """All of ``known``; what is left out costs nothing."""
    check_keys(path, where, found, known)
    for key, value in found.items():
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not (value >= 0 and math.isfinite(value)):
            raise ConfigError(f"{path}: [{where}]: {key} expects 0 or more, got {value!r}", setting=PRICES)
    return {key: float(found.get(key, 0.0)) for key in known}
