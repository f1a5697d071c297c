"""``Pages``: a URL to a document, fetched directly and, where that gives nothing, by a reader service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import PurePosixPath
from weakref import WeakValueDictionary

from yarl import URL

from agentdock.fetching.fetcher import Fetched, SafeFetcher
from agentdock.fetching.jina import Jina
from agentdock.fetching.problems import FetchFailed, FetchProblem, FetchRefused
from agentdock.fetching.recent import Recent
from agentdock.reading.document import Document, ReadProblem, Source
from agentdock.reading.workers import Readers

GONE = (404, 410)
RETRYABLE = (408, 425, 429, 500, 502, 503, 504)
FEW_CHARACTERS = 200
SHOWN_ERROR_CHARACTERS = 300
FETCHES_PER_HOST = 4
KEPT_CHARACTERS = 50_000_000


class HttpError(FetchFailed):
    """The server answered, with an error."""

    def __init__(self, status: int, text: str) -> None:
        names = {known.value: known.phrase for known in HTTPStatus}
        said = " ".join(text.split())[:SHOWN_ERROR_CHARACTERS]
        super().__init__(f"HTTP {status} {names.get(status, '')}".rstrip() + (f": {said}" if said else ""))
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class WebPage:
    """``source`` is "direct" or the host of the reader service."""

    url: str
    final_url: str
    status: int
    content_type: str
    source: str
    document: Document


class Pages:
    """Reads pages, a few at a time per host, and remembers them for ``keep_seconds``."""

    def __init__(
        self, fetcher: SafeFetcher, readers: Readers, *, jina: Jina | None = None, keep_seconds: float = 300.0
    ) -> None:
        self._fetcher = fetcher
        self._readers = readers
        self._jina = jina
        self._recent: Recent[WebPage] = Recent(
            keep_seconds=keep_seconds, max_size=KEPT_CHARACTERS, size_of=lambda page: _size(page.document)
        )
        self._hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def read(self, url: str) -> WebPage:
        """Raise ``FetchProblem`` or ``ReadProblem`` where there is nothing to read."""
        known = self._recent.get(url)
        if known is not None:
            return known
        page = await (self._direct(url) if self._jina is None else self._direct_or_service(url, self._jina))
        self._recent.put(url, page)
        return page

    async def _direct(self, url: str) -> WebPage:
        host = url.split("/", 3)[2] if url.count("/") >= 2 else url
        async with self._hosts.setdefault(host, asyncio.Semaphore(FETCHES_PER_HOST)):
            fetched = await self._fetcher.fetch(url)
        if fetched.status >= 400:
            raise HttpError(fetched.status, await self._error_text(fetched))
        document = await self._readers.read(_source(fetched))
        if fetched.truncated:
            document = replace(document, notes=(*document.notes, "the server ended the page before it was complete"))
        return WebPage(
            url=url,
            final_url=fetched.final_url,
            status=fetched.status,
            content_type=fetched.content_type,
            source="direct",
            document=document,
        )

    async def _error_text(self, fetched: Fetched) -> str:
        try:
            return (await self._readers.read(_source(fetched))).text
        except ReadProblem:
            return ""

    async def _direct_or_service(self, url: str, jina: Jina) -> WebPage:
        page: WebPage | None = None
        problem: FetchProblem | ReadProblem | None = None
        try:
            page = await self._direct(url)
            if page.document.kind != "html" or len(page.document.text) >= FEW_CHARACTERS:
                return page
        except FetchRefused:
            raise
        except (FetchFailed, ReadProblem) as error:
            if isinstance(error, HttpError) and error.status in GONE:
                raise
            problem = error
        try:
            document = await jina.read(url)
        except FetchProblem as error:
            if page is None:
                raise FetchFailed(f"{problem}; {error}") from error
            return replace(page, document=replace(page.document, notes=(*page.document.notes, str(error))))
        return WebPage(
            url=url, final_url=url, status=200, content_type="text/markdown", source=jina.host, document=document
        )


def is_retryable(problem: FetchProblem | ReadProblem) -> bool:
    """Whether the same URL may work a little later."""
    if isinstance(problem, HttpError):
        return problem.status in RETRYABLE
    return isinstance(problem, FetchFailed)


def _source(fetched: Fetched) -> Source:
    name = PurePosixPath(URL(fetched.final_url).path).name
    return Source(body=fetched.body, name=name, content_type=fetched.content_type, url=fetched.final_url)


def _size(document: Document) -> int:
    return len(document.text) + (len(document.picture.base64) if document.picture else 0)
