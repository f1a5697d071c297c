"""Bytes to text: byte order mark, then what headers say, then the page itself, then the bytes themselves."""

from __future__ import annotations

import codecs
import re
from email.message import Message

BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
META = re.compile(rb"<(?:meta|\?xml)[^>]*?(?:charset|encoding)\s*=\s*[\"']?\s*([A-Za-z0-9_\-:.]+)", re.IGNORECASE)
HEAD_BYTES = 4096
# What pages call these is a subset of what they mean by it (WHATWG Encoding, section 4.2).
MEANT = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}


def decoded(body: bytes, content_type: str = "") -> str:
    """The text of ``body``; bytes that fit no encoding become U+FFFD."""
    for mark, encoding in BOMS:
        if body.startswith(mark):
            return body.decode(encoding, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError as error:
        # A page that was cut inside a character is still UTF-8, if it has other characters that show it.
        if error.reason == "unexpected end of data" and not body[: error.start].isascii():
            return body.decode("utf-8", "replace")
    for label in (_header_label(content_type), _meta_label(body)):
        encoding = _known(label)
        if encoding:
            return body.decode(encoding, "replace")
    return body.decode(_guessed(body), "replace")


def _header_label(content_type: str) -> str:
    header = Message()
    header["Content-Type"] = content_type
    return header.get_content_charset("")


def _meta_label(body: bytes) -> str:
    match = META.search(body[:HEAD_BYTES])
    return match[1].decode("ascii") if match else ""


def _known(label: str) -> str:
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    return MEANT.get(name, name)


def _guessed(body: bytes) -> str:
    try:
        from charset_normalizer import from_bytes
    except ImportError:
        return "cp1252"
    best = from_bytes(body[: 64 * 1024]).best()
    return MEANT.get(best.encoding, best.encoding) if best else "cp1252"
