"""Which IP addresses a fetch may connect to: the public ones, whatever form or tunnel they are written in."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

FORBIDDEN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("metadata", ("169.254.169.254/32", "169.254.170.2/32", "100.100.100.200/32", "fd00:ec2::254/128")),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("carrier NAT", ("100.64.0.0/10",)),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    ("broadcast", ("255.255.255.255/32",)),
    ("local NAT64", ("64:ff9b:1::/48",)),
)
NETWORKS: tuple[tuple[str, Network], ...] = tuple(
    (kind, ipaddress.ip_network(text)) for kind, texts in FORBIDDEN for text in texts
)
PUBLIC_V6 = ipaddress.ip_network("2000::/3")
NAT64 = ipaddress.ip_network("64:ff9b::/96")
COMPATIBLE = ipaddress.ip_network("::/96")
NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")


def forbidden_kind(address: Address) -> str:
    """The kind of a non-public address, as "loopback" or "metadata"; empty for a public one."""
    for inner in _embedded(address):
        kind = forbidden_kind(inner)
        if kind:
            return kind
    for kind, network in NETWORKS:
        if address in network:
            return kind
    if any(True for _ in _embedded(address)):
        return ""
    if isinstance(address, ipaddress.IPv6Address) and address not in PUBLIC_V6:
        return "reserved"
    return "" if address.is_global else "reserved"


def _embedded(address: Address) -> Iterator[ipaddress.IPv4Address]:
    """IPv4 addresses that an IPv6 address leads to: mapped, compatible, NAT64, 6to4 and Teredo."""
    if not isinstance(address, ipaddress.IPv6Address):
        return
    if address.ipv4_mapped:
        yield address.ipv4_mapped
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if address in NAT64 or (address in COMPATIBLE and int(address) > 1):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def literal(host: str) -> Address | None:
    """The address that ``host`` is written as, or None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_odd_number(host: str) -> bool:
    """Whether a resolver could read ``host`` as an IPv4 address although it is not four decimal numbers.

    These are the forms of ``inet_aton`` (2130706433, 0x7f.1, 017700000001) and everything that ends in a number.
    """
    if literal(host) is not None:
        return False
    return NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]) is not None
