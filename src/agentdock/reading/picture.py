"""The reader of images: as they are when small and of a kind that models take, else scaled down."""

from __future__ import annotations

import base64
import io
from typing import Any

from agentdock.reading.document import Document, Picture, ReadProblem, Source, library
from agentdock.reading.kinds import image_type

PASSED_ON = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
MAX_BYTES = 1024**2
MAX_SIDE = 1568
MAX_PIXELS = 64_000_000
JPEG_QUALITIES = (85, 60, 35)


def read_image(source: Source) -> Document:
    """Small files are passed on unopened; large ones and other kinds need Pillow."""
    media_type = image_type(source.body)
    size = f"{media_type}, {len(source.body)} bytes"
    if media_type in PASSED_ON and len(source.body) <= MAX_BYTES:
        return _document(media_type, source.body, size)
    pillow = library("PIL.Image", f"showing an image that is large or of a rare kind ({size})")
    try:
        image = pillow.open(io.BytesIO(source.body))
        if image.width * image.height > MAX_PIXELS:
            raise ReadProblem(f"the image has {image.width} x {image.height} pixels; {MAX_PIXELS} in all are opened")
        size = f"{size}, {image.width} x {image.height} pixels"
        image.thumbnail((MAX_SIDE, MAX_SIDE))
        body = _jpeg(image)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise ReadProblem(f"this image is damaged: {error}") from error
    return _document("image/jpeg", body, f"{size}; shown as a JPEG of {image.width} x {image.height} pixels")


def _document(media_type: str, body: bytes, note: str) -> Document:
    picture = Picture(media_type=media_type, base64=base64.b64encode(body).decode())
    return Document(kind="image", text="", notes=(note,), picture=picture)


def _jpeg(image: Any) -> bytes:
    """JPEG of at most ``MAX_BYTES`` where a quality reaches it; transparent becomes white."""
    if image.mode in ("RGBA", "LA", "PA", "P"):
        image = image.convert("RGBA")
        ground = image.copy()
        ground.paste((255, 255, 255, 255), (0, 0, *image.size))
        ground.alpha_composite(image)
        image = ground
    image = image.convert("RGB")
    body = b""
    for quality in JPEG_QUALITIES:
        out = io.BytesIO()
        image.save(out, "JPEG", quality=quality)
        body = out.getvalue()
        if len(body) <= MAX_BYTES:
            break
    return body
