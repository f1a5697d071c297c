"""``SafeFetcher``: one GET, followed through checked redirects, within caps on size and time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from yarl import URL

from agentdock.fetching.body import ACCEPT_ENCODING, read_body
from agentdock.fetching.pinning import Lookup, PinningResolver, system_lookup
from agentdock.fetching.policy import DEFAULT_PORTS, Policy
from agentdock.fetching.problems import FetchFailed, FetchRefused

DEFAULT_BODY_BYTES = 20 * 1024**2
REDIRECTS = frozenset({301, 302, 303, 307, 308})
SECRET_HEADERS = frozenset({"authorization", "cookie", "proxy-authorization"})
USER_AGENT = "Mozilla/5.0 (compatible; AgentDock)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """An answer, of whatever status. ``truncated``: the other side ended the body before it was complete."""

    url: str
    final_url: str
    status: int
    content_type: str
    body: bytes
    truncated: bool
    redirects: int


class SafeFetcher:
    """Fetches public HTTP URLs; raises ``FetchRefused`` by rule, ``FetchFailed`` by accident.

    Names are resolved once per connection and the connection goes to the address that was checked. Private, loopback,
    link-local, carrier, multicast and metadata addresses, other schemes and odd ports are refused at every redirect,
    except for ``allow``: ``host:port`` pairs and networks. Proxy variables of the environment are not read; with
    ``proxy`` names are resolved by the proxy, which must then refuse inner addresses itself.
    """

    def __init__(
        self,
        allow: Sequence[str] = (),
        *,
        max_body_bytes: int = DEFAULT_BODY_BYTES,
        max_redirects: int = 5,
        timeout_seconds: float = 30.0,
        ports: Sequence[int] = DEFAULT_PORTS,
        proxy: str | None = None,
        user_agent: str = USER_AGENT,
        lookup: Lookup = system_lookup,
    ) -> None:
        self._policy = Policy.parse(allow, ports=ports)
        self._max_body_bytes = max_body_bytes
        self._max_redirects = max_redirects
        self._timeout_seconds = timeout_seconds
        self._proxy = None if proxy is None else URL(proxy)
        self._headers = {"User-Agent": user_agent, "Accept": "*/*", "Accept-Encoding": ACCEPT_ENCODING}
        self._lookup = lookup

    async def fetch(self, url: str, *, headers: Mapping[str, str] | None = None) -> Fetched:
        """GET ``url``. Authorization and cookies in ``headers`` do not follow a redirect to another origin."""
        target = self._policy.url(url)
        try:
            async with asyncio.timeout(self._timeout_seconds), self._client() as client:
                return await self._follow(client, url, target, dict(headers or {}))
        except TimeoutError as error:
            raise FetchFailed(f"{url} gave no complete answer within {self._timeout_seconds:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise FetchFailed(f"{url} failed: {type(error).__name__}: {error}") from error

    async def _follow(self, client: aiohttp.ClientSession, url: str, target: URL, headers: dict[str, str]) -> Fetched:
        for redirects in range(self._max_redirects + 1):
            async with client.get(target, headers=headers, allow_redirects=False, proxy=self._proxy) as response:
                location = response.headers.get("Location")
                if response.status not in REDIRECTS or not location:
                    body, truncated = await read_body(response, self._max_body_bytes)
                    return Fetched(
                        url=url,
                        final_url=str(target),
                        status=response.status,
                        content_type=response.headers.get("Content-Type", ""),
                        body=body,
                        truncated=truncated,
                        redirects=redirects,
                    )
            origin, target = target.origin(), self._next(target, location)
            if target.origin() != origin:
                headers = {name: value for name, value in headers.items() if name.lower() not in SECRET_HEADERS}
        raise FetchRefused("redirects", f"{url} redirects more than {self._max_redirects} times")

    def _next(self, target: URL, location: str) -> URL:
        try:
            joined = target.join(URL(location))
        except ValueError as error:
            raise FetchRefused("url", f"redirected to {location!r}, which is not a URL: {error}") from None
        try:
            return self._policy.url(str(joined))
        except FetchRefused as refusal:
            raise FetchRefused(refusal.rule, f"{target} redirects to {joined}: {refusal.reason}") from None

    def _client(self) -> aiohttp.ClientSession:
        proxy = None
        if self._proxy is not None and self._proxy.raw_host and self._proxy.port:
            proxy = (self._proxy.raw_host, self._proxy.port)
        resolver = PinningResolver(self._policy, self._lookup, proxy=proxy)
        connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, limit=2)
        return aiohttp.ClientSession(
            connector=connector,
            headers=self._headers,
            auto_decompress=False,
            trust_env=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
