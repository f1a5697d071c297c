"""The results page of DuckDuckGo that works without scripts. It needs no key and may ask for a person at any time."""

from __future__ import annotations

from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

from agentdock.searching.hits import Row, UnreadableAnswer

DUCKDUCKGO_URL = "https://html.duckduckgo.com"
WANTS_A_PERSON = "wants a person to solve a puzzle; ask less often, or search with another engine"


def duckduckgo_rows(status: int, body: bytes) -> list[Row]:
    text = body.decode("utf-8", "replace")
    if status == 202 or "anomaly-modal" in text:
        raise UnreadableAnswer(WANTS_A_PERSON)
    page = _ResultsPage()
    page.feed(text)
    page.close()
    if not page.rows and "no-results" not in text:
        raise UnreadableAnswer("answered a page without results that does not say that there are none")
    return page.rows


class _ResultsPage(HTMLParser):
    """A result is a block of class ``result`` with a link ``result__a`` and a text ``result__snippet``."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self._is_ad = False
        self._part = ""
        self._part_tag = ""
        self._texts: list[str] = []
        self._url = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = (given.get("class") or "").split()
        if "result" in classes:
            self._is_ad = "result--ad" in classes
        for part in ("result__a", "result__snippet"):
            if part in classes:
                self._part, self._part_tag, self._texts = part, tag, []
                if part == "result__a":
                    self._url = target_of(given.get("href") or "")

    def handle_data(self, data: str) -> None:
        if self._part:
            self._texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        if not self._part or tag != self._part_tag:
            return
        text, part, self._part = "".join(self._texts), self._part, ""
        if self._is_ad:
            return
        if part == "result__a":
            self.rows.append(Row(title=text, url=self._url))
        elif self.rows:
            last = self.rows[-1]
            self.rows[-1] = Row(title=last.title, url=last.url, snippet=text)


def target_of(href: str) -> str:
    """The page that a link of the results leads to; DuckDuckGo wraps it as ``/l/?uddg=``."""
    parts = urlsplit(href)
    wrapped = parse_qs(parts.query).get("uddg", [""])[0] if parts.path == "/l/" else ""
    return wrapped or href
