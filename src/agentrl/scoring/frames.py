"""Messages between a process and its scoring workers: a length, then JSON."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

HEADER = struct.Struct("!Q")


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    payload = json.dumps(message, default=str).encode()
    channel.sendall(HEADER.pack(len(payload)) + payload)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """One message, or None once the other side has closed."""
    header = read_exactly(channel, HEADER.size)
    if header is None:
        return None
    payload = read_exactly(channel, HEADER.unpack(header)[0])
    return None if payload is None else json.loads(payload)


def read_exactly(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = channel.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)
