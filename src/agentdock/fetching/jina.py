"""A reader service that speaks Jina's protocol: it draws the page, scripts and all, and answers its text."""

from __future__ import annotations

import json

from yarl import URL

from agentdock.fetching.fetcher import SafeFetcher
from agentdock.fetching.problems import FetchFailed
from agentdock.reading.document import Document


class Jina:
    """``GET base/url`` with ``Accept: application/json``; ``key`` may be empty. The operator vouches for the base."""

    def __init__(
        self, base_url: str, *, key: str = "", timeout_seconds: float = 60.0, proxy: str | None = None
    ) -> None:
        base = URL(base_url)
        if base.scheme not in ("http", "https") or not base.raw_host:
            raise ValueError(f"the reader service {base_url!r} is not an http:// or https:// URL")
        shown = f"[{base.raw_host}]" if ":" in base.raw_host else base.raw_host
        self.host = base.raw_host
        self._base = base_url.rstrip("/")
        self._fetcher = SafeFetcher([f"{shown}:{base.port}"], timeout_seconds=timeout_seconds, proxy=proxy)
        self._headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    async def read(self, url: str) -> Document:
        fetched = await self._fetcher.fetch(f"{self._base}/{url}", headers=self._headers)
        if fetched.status != 200:
            raise FetchFailed(f"the reader service {self.host} answered HTTP {fetched.status}")
        try:
            page = json.loads(fetched.body)["data"]
            return Document(kind="html", title=str(page.get("title") or ""), text=str(page["content"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise FetchFailed(f"the reader service {self.host} answered something else than a page") from error
