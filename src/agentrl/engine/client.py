"""An engine that lives behind HTTP, as ``server`` serves it. Imports no torch."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp

from agentrl.engine import wire
from agentrl.engine.base import Confirmation, EngineHealth, WeightSource
from agentrl.errors import AgentRLError, ConfigError, ContextTooLong, EngineError, WeightsError
from agentrl.types import Completion, Sampling

BACKOFF_SECONDS = 0.5
CONTROL_SECONDS = 30.0
NUM_BYTES_SHOWN = 200


class EngineUnavailable(EngineError):
    """The request was lost or turned away before a completion arrived; another engine may be asked.

    ``retry_after`` is the wait the engine asked for, in seconds, or None.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineClient:
    """``Engine`` over HTTP at ``url``. Open it inside a running loop by using it; ``close`` ends its connections.

    A lost connection, 429 or 5xx is tried once more after a back-off, all within the deadline of the request.
    """

    def __init__(self, url: str, *, update_timeout_seconds: float = 120.0) -> None:
        self.url = url.rstrip("/")
        self._update_timeout_seconds = update_timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    async def generate(
        self, prompt_ids: Sequence[int], *, sampling: Sampling, session: str, deadline_seconds: float
    ) -> Completion:
        begun = time.monotonic()
        body = {
            "token_ids": list(prompt_ids),
            "sampling": asdict(sampling),
            "session": session,
            "deadline_seconds": deadline_seconds,
        }
        raw = await self._within(deadline_seconds, "POST", "/generate", body)
        try:
            return wire.completion_from(decode(raw), service=self.url, latency_seconds=time.monotonic() - begun)
        except ValueError as error:
            raise EngineError(f"engine {self.url}: {error}; the answer begins {shown(raw)}") from error

    async def update_weights(self, version: int, source: WeightSource) -> Confirmation:
        body = {"version": version, "path": source.path, "canary": source.canary and asdict(source.canary)}
        raw = await self._within(self._update_timeout_seconds, "POST", "/update_weights", body)
        try:
            confirmation = wire.confirmation_from(decode(raw), url=self.url)
        except ValueError as error:
            raise EngineError(f"engine {self.url}: {error}; the answer begins {shown(raw)}") from error
        if confirmation.version != version:
            raise WeightsError(f"engine {self.url} was given version {version} and serves {confirmation.version}")
        return confirmation

    async def pause(self) -> None:
        await self._within(CONTROL_SECONDS, "POST", "/pause", {})

    async def resume(self) -> None:
        await self._within(CONTROL_SECONDS, "POST", "/resume", {})

    async def health(self) -> EngineHealth:
        """One attempt: whoever asks wants to know how it is now."""
        raw = await self._attempt_within(CONTROL_SECONDS, "GET", "/health", None)
        try:
            return wire.health_from(decode(raw))
        except ValueError as error:
            raise EngineError(f"engine {self.url}: {error}; the answer begins {shown(raw)}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _within(self, seconds: float, method: str, path: str, body: dict[str, Any]) -> bytes:
        """The body of the answer, from the first attempt or the second."""
        end = time.monotonic() + seconds
        try:
            return await self._attempt_within(seconds, method, path, body)
        except EngineUnavailable as lost:
            wait = delay(lost.retry_after)
            left = end - time.monotonic()
            if wait >= left:
                raise EngineUnavailable(f"{lost}; {max(left, 0):.1f} s are left, too short to retry") from lost
            await asyncio.sleep(wait)
        return await self._attempt_within(end - time.monotonic(), method, path, body)

    async def _attempt_within(self, seconds: float, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                return await self._attempt(method, path, body)
        except TimeoutError as error:
            raise EngineError(f"engine {self.url}{path}: no answer within {seconds:.3g} s") from error

    async def _attempt(self, method: str, path: str, body: dict[str, Any] | None) -> bytes:
        try:
            sending = self._connections().request(method, self.url + path, json=body, allow_redirects=False)
            async with sending as response:
                raw = await response.read()
        except aiohttp.InvalidURL as error:
            raise EngineError(f"{self.url!r} is no URL; set --engine_url to http://HOST:PORT") from error
        except (aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"engine {self.url}{path}: {type(error).__name__}: {error}") from error
        if response.status == 200:
            return raw
        raise self._refusal(path, response, raw)

    def _refusal(self, path: str, response: aiohttp.ClientResponse, raw: bytes) -> AgentRLError:
        """The error that an answer other than 200 stands for."""
        kind, message = error_in(raw)
        text = f"engine {self.url}{path} answered {response.status}: {message or shown(raw)}"
        match response.status:
            case 400 if kind in (wire.CONTEXT_TOO_LONG, "context_length_exceeded"):
                return ContextTooLong(text)
            case 401 | 403 | 404:
                return ConfigError(f"{text}; expected the address of an engine", setting="--engine_url")
            case 409:
                return WeightsError(text)
            case 504:
                return EngineError(text)
            case 429 | 503:
                return EngineUnavailable(text, retry_after=seconds_of(response.headers.get("Retry-After", "")))
            case status if status >= 500:
                return EngineUnavailable(text)
        return EngineError(text)

    def _connections(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._session


def delay(retry_after: float | None) -> float:
    """Seconds until the second attempt: what the engine asked for, or the usual back-off; jitter on top."""
    return (retry_after or BACKOFF_SECONDS) + random.uniform(0, BACKOFF_SECONDS / 2)


def seconds_of(retry_after: str) -> float | None:
    """``Retry-After`` as seconds from now; None for a date in the past, text or nothing."""
    if retry_after.strip().isdecimal():
        return float(retry_after)
    try:
        date = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    seconds = (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return seconds if seconds > 0 else None


def decode(raw: bytes) -> Any:
    if not raw:
        raise wire.WireError("the answer is empty")
    try:
        return json.loads(raw)
    except ValueError as error:
        raise wire.WireError(f"the answer is not JSON ({error})") from error


def error_in(raw: bytes) -> tuple[str, str]:
    """Type and message of an error answer; empty where it has none."""
    try:
        error = json.loads(raw)["error"]
        return str(error.get("type") or error.get("code") or ""), str(error.get("message") or "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""


def shown(raw: bytes) -> str:
    return repr(raw[:NUM_BYTES_SHOWN].decode("utf-8", errors="replace"))
