"""``WebEngine``: asks one service over HTTP, and says what went wrong without saying a key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime

import aiohttp

from agentdock.fetching.body import ACCEPT_ENCODING, read_body
from agentdock.fetching.problems import FetchFailed, FetchRefused
from agentdock.searching.hits import (
    MAX_SNIPPET_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    EngineFailed,
    Hit,
    Row,
    UnreadableAnswer,
    one_line,
)
from agentdock.searching.services import Question, Service

MAX_ANSWER_BYTES = 4 * 1024**2
BUSY_REST_SECONDS = 10.0
MAX_REST_SECONDS = 3600.0
MAX_SAID_CHARACTERS = 200
REFUSES_KEY = frozenset({401, 402, 403})
ACCEPT = "application/json, text/html;q=0.9"
USER_AGENT = "Mozilla/5.0 (compatible; AgentDock)"


class WebEngine:
    """A service at ``base_url``, with the values of its variables. Redirects are not followed: keys would go along."""

    def __init__(
        self,
        service: Service,
        keys: Mapping[str, str],
        *,
        base_url: str,
        timeout_seconds: float = 20.0,
        proxy: str | None = None,
    ) -> None:
        self.name = service.name
        self._service = service
        self._keys = dict(keys)
        self._base_url = base_url.rstrip("/")
        self._timeout_seconds = timeout_seconds
        self._proxy = proxy
        self._client: aiohttp.ClientSession | None = None

    async def search(self, query: str, num: int) -> Sequence[Hit]:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                rows = await self._rows(self._service.ask(query, num, self._keys))
        except TimeoutError:
            raise self._failed(f"gave no answer within {self._timeout_seconds:g} s", retryable=True) from None
        except (aiohttp.ClientError, OSError, FetchFailed) as error:
            raise self._failed(f"failed: {error}", retryable=True) from None
        except (FetchRefused, UnreadableAnswer, ValueError) as error:
            raise self._failed(str(error), retryable=False) from None
        found = [row for row in rows if row.url.startswith(("http://", "https://"))][:num]
        return [self._hit(rank, row) for rank, row in enumerate(found, start=1)]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def _rows(self, question: Question) -> Sequence[Row]:
        if self._client is None:
            self._client = aiohttp.ClientSession(
                headers={"User-Agent": USER_AGENT, "Accept": ACCEPT, "Accept-Encoding": ACCEPT_ENCODING},
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            )
        async with self._client.request(
            question.method,
            self._base_url + question.path,
            params=question.params,
            headers=question.headers,
            json=question.json,
            data=question.form,
            allow_redirects=False,
            proxy=self._proxy,
        ) as response:
            body, _ = await read_body(response, MAX_ANSWER_BYTES)
            if not 200 <= response.status < 300:
                raise self._refusal(response, body.decode("utf-8", "replace"))
            return self._service.read(response.status, body)

    def _refusal(self, response: aiohttp.ClientResponse, text: str) -> EngineFailed:
        status = response.status
        said = one_line(text, MAX_SAID_CHARACTERS) if "html" not in response.content_type else ""
        reason = f"answered HTTP {status}" + (f": {said}" if said else "")
        rest = rest_seconds(response.headers.get("Retry-After", ""))
        if status in self._service.advice:
            return self._failed(f"{reason} - {self._service.advice[status]}", retryable=False)
        if status in REFUSES_KEY and self._service.variables:
            variables = " and ".join(self._service.variables)
            return self._failed(f"{reason} - see what {variables} holds and what it pays for", retryable=False)
        if 300 <= status < 400:
            return self._failed(f"{reason} - redirects are not followed", retryable=False)
        if status == 429:
            return self._failed(reason, retryable=True, rest_seconds=rest or BUSY_REST_SECONDS)
        return self._failed(reason, retryable=status >= 500, rest_seconds=rest if status >= 500 else 0.0)

    def _failed(self, reason: str, *, retryable: bool, rest_seconds: float = 0.0) -> EngineFailed:
        text = f"{self.name} {reason}"
        for variable, value in self._keys.items():
            text = text.replace(value, f"[{variable}]")
        return EngineFailed(text, retryable=retryable, rest_seconds=rest_seconds)

    def _hit(self, rank: int, row: Row) -> Hit:
        return Hit(
            rank=rank,
            title=one_line(row.title, MAX_TITLE_CHARACTERS),
            url=row.url,
            snippet=one_line(row.snippet, MAX_SNIPPET_CHARACTERS),
            engine=self.name,
            date=one_line(row.date, 40),
        )


def rest_seconds(retry_after: str) -> float:
    """What ``Retry-After`` asks for, as seconds or as a date; 0 if it says nothing."""
    text = retry_after.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_REST_SECONDS)
    try:
        wait = parsedate_to_datetime(text).timestamp() - time.time()
    except (ValueError, TypeError):
        return 0.0
    return min(max(wait, 0.0), MAX_REST_SECONDS)
