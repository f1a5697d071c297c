"""What may be fetched: scheme, form, port and address of a URL, and the allow-list that opens more."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from yarl import URL

from agentdock.fetching.addresses import Address, Network, forbidden_kind, is_odd_number, literal
from agentdock.fetching.problems import FetchRefused

DEFAULT_PORTS = (80, 443, 8080, 8443)
MAX_URL_CHARACTERS = 8000
HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:/\[\]@]+):(?P<port>\d{1,5})")
UNSAFE = re.compile(r"[\x00-\x20\x7f\\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """``hosts`` are pairs of name or address and port that are always allowed, ``networks`` allowed address ranges.

    A network never opens an instance metadata address; naming it as a host does.
    """

    hosts: frozenset[tuple[str, int]] = frozenset()
    networks: tuple[Network, ...] = ()
    ports: frozenset[int] = frozenset(DEFAULT_PORTS)

    @classmethod
    def parse(cls, allow: Iterable[str], *, ports: Iterable[int] = DEFAULT_PORTS) -> Policy:
        """Read allow entries: ``host:port``, ``[v6]:port`` or a network such as ``10.1.0.0/16``."""
        hosts: set[tuple[str, int]] = set()
        networks: list[Network] = []
        for entry in allow:
            match = HOST_PORT.fullmatch(entry)
            if match:
                hosts.add((_plain(match["host"]), int(match["port"])))
                continue
            try:
                networks.append(ipaddress.ip_network(entry))
            except ValueError:
                raise ValueError(
                    f"allow entry {entry!r} is neither host:port nor a network such as 10.1.0.0/16"
                ) from None
        return cls(hosts=frozenset(hosts), networks=tuple(networks), ports=frozenset(ports))

    def url(self, text: str) -> URL:
        """Parse and check everything that can be known before a name is resolved."""
        if len(text) > MAX_URL_CHARACTERS:
            raise FetchRefused("url", f"the URL has {len(text)} characters; at most {MAX_URL_CHARACTERS} are taken")
        if UNSAFE.search(text):
            raise FetchRefused("url", f"{text!r} has a blank, a control character or a backslash in it")
        try:
            url = URL(text)
        except ValueError as error:
            raise FetchRefused("url", f"{text!r} is not a URL: {error}") from None
        if url.scheme not in ("http", "https"):
            raise FetchRefused("scheme", f"{text!r} is not an http:// or https:// URL; nothing else is fetched")
        if not url.raw_host or url.port is None:
            raise FetchRefused("url", f"{text!r} names no host")
        if url.raw_user is not None or url.raw_password is not None:
            raise FetchRefused("userinfo", "the URL has a user or password before its host; write it without")
        if is_odd_number(url.raw_host):
            raise FetchRefused("address form", f"{url.raw_host!r} is not a host name or a plain address")
        self._check_port(url.raw_host, url.port)
        address = literal(url.raw_host)
        if address is not None:
            self.check_addresses(url.raw_host, url.port, (address,))
        return url

    def check_addresses(self, host: str, port: int, addresses: Sequence[Address]) -> None:
        """Raise ``FetchRefused`` if a connection to ``host`` could reach an address that is not allowed."""
        if (_plain(host), port) in self.hosts:
            return
        for address in addresses:
            kind = forbidden_kind(address)
            if kind and (kind == "metadata" or not self._in_networks(address)):
                where = host if literal(host) else f"{host} ({address})"
                network = "" if kind == "metadata" else f"the network of {address}"
                raise FetchRefused(kind, f"{where} is a {kind} address. {_way_out(host, port, network)}")

    def _check_port(self, host: str, port: int) -> None:
        if port in self.ports or (_plain(host), port) in self.hosts:
            return
        address = literal(host)
        if address is not None and self._in_networks(address):
            return
        ports = ", ".join(str(allowed) for allowed in sorted(self.ports))
        raise FetchRefused("port", f"port {port} is not one of {ports}. {_way_out(host, port)}")

    def _in_networks(self, address: Address) -> bool:
        return any(address in network for network in self.networks)


def _way_out(host: str, port: int, network: str = "") -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"An operator can allow {shown}:{port}{f' or {network}' if network else ''} with --allow."


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()
