"""What ``execute_code`` answers: the output as a model reads it, all parts beside it, images to look at."""

from __future__ import annotations

import base64
import mimetypes
from dataclasses import asdict
from typing import Any

from agentdock.reading.document import Picture
from agentdock.sandbox.limits import Execution
from agentdock.sandbox.workspace import MAX_LISTED, FoundFile
from agentdock.servers.serve import Answer

MAX_PICTURES = 8
MAX_INLINE_BYTES = 64 * 1024
IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


def answer(execution: Execution) -> Answer:
    """Text and structured content; what ended with an exit code or at a limit is an error that keeps its output."""
    listed = execution.files[:MAX_LISTED]
    pictures = tuple(picture for picture in map(_picture, listed) if picture)
    structured = {
        "stdout": execution.stdout,
        "stderr": execution.stderr,
        "exit_code": execution.exit_code,
        "stopped": execution.stopped,
        "truncated": execution.truncated,
        "seconds": round(execution.seconds, 3),
        "files": [_described(file) for file in listed],
        "num_files": len(execution.files),
        **asdict(execution.containment),
    }
    return Answer(
        text="\n".join(_parts(execution, listed, len(pictures))) or "[no output]",
        is_error=bool(execution.stopped) or execution.exit_code != 0,
        structured=structured,
        pictures=pictures[:MAX_PICTURES],
    )


def _parts(execution: Execution, listed: tuple[FoundFile, ...], num_pictures: int) -> list[str]:
    parts = [execution.stdout.rstrip("\n")] if execution.stdout else []
    if execution.stderr:
        parts.append("[stderr]\n" + execution.stderr.rstrip("\n"))
    if listed:
        parts.append("[files] " + ", ".join(f"{file.name} ({file.num_bytes} bytes)" for file in listed))
    if len(listed) < len(execution.files):
        parts.append(f"[{len(execution.files) - len(listed)} more files]")
    if num_pictures > MAX_PICTURES:
        parts.append(f"[the first {MAX_PICTURES} of {num_pictures} images are shown]")
    if execution.stopped:
        parts.append(f"[stopped at the {execution.stopped}]")
    elif execution.exit_code != 0:
        parts.append(f"[exit code {execution.exit_code}]")
    return parts


def _described(file: FoundFile) -> dict[str, Any]:
    """``base64`` is None for what is too large to be returned, and for images, which are shown."""
    small = file.body is not None and len(file.body) <= MAX_INLINE_BYTES and not _media_type(file)
    return {
        "name": file.name,
        "bytes": file.num_bytes,
        "media_type": _media_type(file) or mimetypes.guess_type(file.name)[0] or "application/octet-stream",
        "base64": base64.b64encode(file.body).decode() if file.body is not None and small else None,
    }


def _picture(file: FoundFile) -> Picture | None:
    kind = _media_type(file)
    return Picture(media_type=kind, base64=base64.b64encode(file.body).decode()) if kind and file.body else None


def _media_type(file: FoundFile) -> str:
    """The kind of image that the first bytes say it is, or nothing."""
    body = file.body or b""
    if body[:4] == b"RIFF" and body[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in IMAGES.items() if body.startswith(start)), "")
