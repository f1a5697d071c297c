"""Search services of the web as one table: where each is asked, with which keys, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentdock.searching.duckduckgo import DUCKDUCKGO_URL, duckduckgo_rows
from agentdock.searching.hits import Row, UnreadableAnswer

Keys = Mapping[str, str]
"""Values of a service's variables by their names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One request. Keys stand in ``headers`` only: paths and parameters end up in logs of proxies."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    json: Mapping[str, Any] | None = None
    form: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRows:
    """Reads the list ``rows`` of a JSON object; the other names are fields of its items. No list is no results."""

    rows: str
    url: str
    snippet: str
    title: str = "title"
    date: str = ""

    def __call__(self, status: int, body: bytes) -> list[Row]:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            raise UnreadableAnswer("answered something else than JSON") from None
        items = answer.get(self.rows, []) if isinstance(answer, dict) else None
        if not isinstance(items, list):
            raise UnreadableAnswer(f"answered JSON without a list {self.rows!r}")
        return [self._row(item) for item in items if isinstance(item, dict)]

    def _row(self, item: Mapping[str, Any]) -> Row:
        names = {"title": self.title, "url": self.url, "snippet": self.snippet, "date": self.date}
        texts = {name: item.get(place) for name, place in names.items()}
        return Row(**{name: value if isinstance(value, str) else "" for name, value in texts.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """``variables`` must all be set. ``advice`` says by status what a refusal means, if not what it usually does."""

    name: str
    base_url: str
    variables: tuple[str, ...]
    ask: Callable[[str, int, Keys], Question]
    read: Callable[[int, bytes], Sequence[Row]]
    url_variable: str = ""
    advice: Mapping[int, str] = field(default_factory=dict)


def _serper(query: str, num: int, keys: Keys) -> Question:
    headers = {"X-API-KEY": keys["SERPER_API_KEY"]}
    return Question(method="POST", path="/search", headers=headers, json={"q": query, "num": num})


def _google(query: str, num: int, keys: Keys) -> Question:
    params = {"q": query, "num": str(min(num, 10)), "cx": keys["GOOGLE_CSE_ID"]}
    headers = {"X-Goog-Api-Key": keys["GOOGLE_API_KEY"]}
    return Question(method="GET", path="/customsearch/v1", params=params, headers=headers)


def _exa(query: str, num: int, keys: Keys) -> Question:
    # Without "contents" the results have no text at all.
    body = {"query": query, "numResults": num, "contents": {"text": {"maxCharacters": 500}}}
    return Question(method="POST", path="/search", headers={"x-api-key": keys["EXA_API_KEY"]}, json=body)


def _tavily(query: str, num: int, keys: Keys) -> Question:
    headers = {"Authorization": f"Bearer {keys['TAVILY_API_KEY']}"}
    return Question(method="POST", path="/search", headers=headers, json={"query": query, "max_results": num})


def _jina(query: str, num: int, keys: Keys) -> Question:
    headers = {"Authorization": f"Bearer {keys['JINA_API_KEY']}", "X-Respond-With": "no-content"}
    return Question(method="POST", path="/", headers=headers, json={"q": query, "num": num})


def _searxng(query: str, num: int, keys: Keys) -> Question:
    return Question(method="GET", path="/search", params={"q": query, "format": "json"})


def _duckduckgo(query: str, num: int, keys: Keys) -> Question:
    return Question(method="POST", path="/html/", form={"q": query})


SERVICES: Mapping[str, Service] = {
    service.name: service
    for service in (
        Service(
            name="serper",
            base_url="https://google.serper.dev",
            variables=("SERPER_API_KEY",),
            ask=_serper,
            read=JsonRows(rows="organic", url="link", snippet="snippet", date="date"),
        ),
        Service(
            name="google",
            base_url="https://www.googleapis.com",
            variables=("GOOGLE_API_KEY", "GOOGLE_CSE_ID"),
            ask=_google,
            read=JsonRows(rows="items", url="link", snippet="snippet"),
        ),
        Service(
            name="exa",
            base_url="https://api.exa.ai",
            variables=("EXA_API_KEY",),
            ask=_exa,
            read=JsonRows(rows="results", url="url", snippet="text", date="publishedDate"),
        ),
        Service(
            name="tavily",
            base_url="https://api.tavily.com",
            variables=("TAVILY_API_KEY",),
            ask=_tavily,
            read=JsonRows(rows="results", url="url", snippet="content", date="published_date"),
        ),
        Service(
            name="jina",
            base_url="https://s.jina.ai",
            variables=("JINA_API_KEY",),
            ask=_jina,
            read=JsonRows(rows="data", url="url", snippet="description", date="date"),
        ),
        Service(
            name="searxng",
            base_url="",
            variables=("SEARXNG_URL",),
            url_variable="SEARXNG_URL",
            ask=_searxng,
            read=JsonRows(rows="results", url="url", snippet="content", date="publishedDate"),
            advice={403: "add json to search.formats in its settings.yml"},
        ),
        Service(name="duckduckgo", base_url=DUCKDUCKGO_URL, variables=(), ask=_duckduckgo, read=duckduckgo_rows),
    )
}
