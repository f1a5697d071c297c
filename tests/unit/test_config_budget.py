"""``--budget``, ``--prices`` and ``--budget_action``: what they say, what it costs, and what is refused."""

from pathlib import Path

import pytest
from cli_help import configured

from agentrl.config import Budget
from agentrl.config.budget import read_limits, read_prices
from agentrl.errors import ConfigError

TOTALS = {
    "calls": 10.0,
    "prompt_tokens": 3_000_000.0,
    "sampled_tokens": 500_000.0,
    "calls/tool:search": 7.0,
    "calls/tool:sum": 5.0,
}
PRICES = """
currency = "EUR"

[models.train-model]
per_million_prompt_tokens = 0.5
per_million_sampled_tokens = 2
per_call = 0.01

[models."another/model"]
per_call = 9

[tools.search]
per_call = 0.25
"""


def prices_file(folder: Path, text: str = PRICES) -> Path:
    path = folder / "prices.toml"
    path.write_text(text)
    return path


# --- What is counted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "used", "words"),
    [
        ("tokens=4e6", 3_500_000, "3,500,000 of 4,000,000 tokens"),
        ("prompt_tokens=4e6", 3_000_000, "3,000,000 of 4,000,000 prompt tokens"),
        ("sampled_tokens=1_000_000", 500_000, "500,000 of 1,000,000 sampled tokens"),
        ("calls=20", 10, "10 of 20 model calls"),
        ("tool_calls=20", 12, "12 of 20 tool calls"),
        ("tool_calls/search=8", 7, "7 of 8 calls to search"),
        ("tool_calls/never=8", 0, "0 of 8 calls to never"),
    ],
)
def test_a_limit_counts_what_its_name_says(limit: str, used: float, words: str) -> None:
    budget = Budget(limits=read_limits(limit))
    (name,) = budget.limits
    assert budget.used(TOTALS) == {name: used}
    assert budget.in_words(name, TOTALS) == words
    assert budget.used({}) == {name: 0.0}


def test_a_budget_is_used_up_at_its_limit_and_says_by_which(tmp_path: Path) -> None:
    assert Budget(limits=read_limits("tokens=3_500_001, calls=11")).used_up(TOTALS) == ""
    assert Budget(limits=read_limits("calls=11,tokens=3.5e6")).used_up(TOTALS) == "3,500,000 of 3,500,000 tokens"
    assert Budget().used_up(TOTALS) == ""
    prices = read_prices(prices_file(tmp_path), "train-model")
    assert Budget(limits={"money": 4.0}, prices=prices).used_up(TOTALS) == "4.35 of 4.00 EUR"


def test_money_is_tokens_by_the_million_and_calls_by_the_price_of_their_tool(tmp_path: Path) -> None:
    ours = read_prices(prices_file(tmp_path), "train-model")
    assert ours.cost(TOTALS) == pytest.approx(3 * 0.5 + 0.5 * 2 + 10 * 0.01 + 7 * 0.25)
    assert read_prices(prices_file(tmp_path), "another/model").cost(TOTALS) == pytest.approx(10 * 9 + 7 * 0.25)
    others = prices_file(tmp_path, PRICES + '[tools."*"]\nper_call = 0.1\n')
    assert read_prices(others, "train-model").cost(TOTALS) == pytest.approx(4.35 + 5 * 0.1)
    assert ours.cost({}) == 0.0


def test_budget_prices_and_budget_action_are_read_together(tmp_path: Path) -> None:
    flags = ["--budget=money=20,calls=5", f"--prices={prices_file(tmp_path)}", "--budget_action=pause"]
    budget = configured(tmp_path, *flags).read_budget()
    assert budget.limits == {"money": 20.0, "calls": 5.0}
    assert budget.action == "pause"
    assert budget.prices is not None
    assert budget.prices.currency == "EUR"
    assert configured(tmp_path).read_budget() == Budget()


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--budget=tokens"], "--budget: expects NAME=AMOUNT,..., got 'tokens'"),
        (
            ["--budget=token=5"],
            "--budget: unknown limit 'token'; did you mean tokens? (it knows tokens, prompt_tokens, ",
        ),
        (["--budget=tokens=5,tokens=6"], "--budget: tokens is given twice"),
        (["--budget=tokens=many"], "--budget: tokens expects a number above 0, as 2e6, got 'many'"),
        (["--budget=tokens=0"], "--budget: tokens expects a number above 0"),
        (["--budget=tokens=-5"], "--budget: tokens expects a number above 0"),
        (["--budget=tokens=inf"], "--budget: tokens expects a number above 0"),
        (["--budget=tokens=nan"], "--budget: tokens expects a number above 0"),
        (["--budget=tool_calls/=5"], "--budget: unknown limit 'tool_calls/'"),
        (["--budget=judge_tokens=5"], "--budget: judge_tokens: there is no judge model yet"),
        (["--budget=money=20"], "--budget: money needs the file of prices: add --prices FILE.toml"),
        (["--budget_action=pause"], "--budget_action: has no effect without a limit: add --budget, or leave it out"),
    ],
)
def test_a_budget_that_limits_nothing_is_refused_by_name(tmp_path: Path, flags: list[str], told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        configured(tmp_path, *flags)
    assert str(raised.value).startswith(told)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models = 3", "models expects a table, got 3"),
        ("[models", "is not TOML: "),
        ("", "has no table [models.train-model], the model of this run (--model_name)"),
        ("[models.m]", "has no table [models.train-model], the model of this run (--model_name); it has m"),
        ("price = 3", "unknown key 'price'"),
        ("currency = 3", "currency expects a text, as EUR, got 3"),
        ("[models.train-model]\nper_cal = 1", "[models.train-model]: unknown key 'per_cal'; did you mean per_call?"),
        ("[models.train-model]\nper_call = -1", "[models.train-model]: per_call expects 0 or more, got -1"),
        ("[models.train-model]\nper_call = true", "[models.train-model]: per_call expects 0 or more, got True"),
        ("[models.train-model]\nper_call = nan", "[models.train-model]: per_call expects 0 or more, got nan"),
        ("[models.train-model]\n[tools]\nsearch = 1", "search expects a table, got 1"),
        ("[models.train-model]\n[tools.search]\nprice = 1", "[tools.search]: unknown key 'price'"),
        ("[models.train-model]", "has no price above 0, so money limits nothing"),
    ],
)
def test_a_file_of_prices_that_cannot_be_used_is_refused_by_table_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = prices_file(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        configured(tmp_path, "--budget=money=1", f"--prices={path}").read_budget()
    assert str(raised.value).startswith(f"--prices: {path}")
    assert told in str(raised.value)


def test_a_file_of_prices_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--prices: .*none\.toml cannot be read: No such file"):
        configured(tmp_path, f"--prices={tmp_path / 'none.toml'}").read_budget()
