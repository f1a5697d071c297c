"""A response body, decoded and never larger than the cap, whatever its headers claim."""

from __future__ import annotations

import zlib

import aiohttp

from agentdock.fetching.problems import FetchFailed, FetchRefused

ACCEPT_ENCODING = "gzip, deflate"
CHUNK_BYTES = 64 * 1024
# Each member costs a copy of the rest of its chunk; millions of empty ones would stall the event loop.
MAX_MEMBERS = 100


async def read_body(response: aiohttp.ClientResponse, max_bytes: int) -> tuple[bytes, bool]:
    """The decoded body and whether the other side ended it early; raise ``FetchRefused`` beyond ``max_bytes``."""
    declared = response.content_length
    if declared is not None and declared > max_bytes:
        raise FetchRefused("body size", f"the body has {declared} bytes; at most {max_bytes} are fetched")
    decoder = _decoder(response.headers.get("Content-Encoding", ""))
    body = bytearray()
    ended_early = False
    received = 0
    try:
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            received += len(chunk)
            body += decoder.decode(chunk, max_bytes + 1 - len(body))
            if len(body) > max_bytes or received > max_bytes:
                raise FetchRefused(
                    "body size",
                    f"the body is larger than {max_bytes} bytes{decoder.said(received)}; at most that many are fetched",
                )
    except aiohttp.ClientPayloadError:
        ended_early = True
    return bytes(body), ended_early or not decoder.complete


class _Plain:
    complete = True

    def decode(self, chunk: bytes, room: int) -> bytes:
        return chunk

    def said(self, received: int) -> str:
        return ""


class _Zlib:
    """gzip, zlib and raw deflate, each step bounded by the room that is left."""

    def __init__(self, *, gzip: bool) -> None:
        self._gzip = gzip
        self._members = 1
        self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16) if gzip else None

    @property
    def complete(self) -> bool:
        return self._stream is None or self._stream.eof

    def decode(self, chunk: bytes, room: int) -> bytes:
        if self._stream is None:
            # "deflate" is zlib by the standard and raw by many servers; a zlib header is 8 in the low half byte.
            self._stream = zlib.decompressobj(zlib.MAX_WBITS if chunk[0] & 0x0F == 8 else -zlib.MAX_WBITS)
        out = bytearray()
        waiting = chunk
        try:
            while waiting and len(out) < room:
                if self._stream.eof:
                    if not self._gzip or not waiting.strip(b"\0"):
                        break
                    self._members += 1
                    if self._members > MAX_MEMBERS:
                        raise FetchRefused("encoding", f"the body has more than {MAX_MEMBERS} gzip members")
                    self._stream = zlib.decompressobj(zlib.MAX_WBITS | 16)
                out += self._stream.decompress(waiting, room - len(out))
                waiting = self._stream.unconsumed_tail or self._stream.unused_data
        except zlib.error as error:
            raise FetchFailed(f"the compressed body is damaged ({error})") from error
        return bytes(out)

    def said(self, received: int) -> str:
        return f" after decompression ({received} bytes were enough to make it so)"


def _decoder(encoding: str) -> _Plain | _Zlib:
    match encoding.strip().lower():
        case "" | "identity":
            return _Plain()
        case "gzip" | "x-gzip":
            return _Zlib(gzip=True)
        case "deflate":
            return _Zlib(gzip=False)
        case other:
            raise FetchRefused("encoding", f"the body is coded as {other!r}; only {ACCEPT_ENCODING} are decoded")
