"""Names resolved once per connection, checked, and connected to as addresses: a second answer cannot matter."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence

from aiohttp.abc import AbstractResolver, ResolveResult

from agentdock.fetching.policy import Policy
from agentdock.fetching.problems import FetchFailed

Lookup = Callable[[str, int], Awaitable[Sequence[str]]]


async def system_lookup(host: str, port: int) -> Sequence[str]:
    """The addresses of ``host`` as the operating system knows them."""
    answers = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class PinningResolver(AbstractResolver):
    """The resolver of one fetch. What it returns is what aiohttp connects to, without another look-up.

    A name of which any address is forbidden is refused whole, since its owner is playing.
    """

    def __init__(self, policy: Policy, lookup: Lookup, *, proxy: tuple[str, int] | None) -> None:
        self._policy = policy
        self._lookup = lookup
        self._proxy = proxy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            addresses = [ipaddress.ip_address(text) for text in await self._lookup(host, port)]
        except OSError as error:
            raise FetchFailed(f"the name {host} was not found ({error.strerror or error})") from error
        if not addresses:
            raise FetchFailed(f"the name {host} has no address")
        if (host, port) != self._proxy:
            self._policy.check_addresses(host, port, addresses)
        return [
            ResolveResult(
                hostname=host,
                host=str(address),
                port=port,
                family=socket.AF_INET if address.version == 4 else socket.AF_INET6,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return None
