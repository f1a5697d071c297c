"""What a document is: by its first bytes, then by what its origin says."""

from __future__ import annotations

import io
import mimetypes
import zipfile
from pathlib import PurePosixPath

from agentdock.reading.document import ReadProblem, Source

IMAGE_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\x00", "image/tiff"),
    (b"MM\x00*", "image/tiff"),
)
OFFICE_PARTS = {"word/document.xml": "docx", "xl/workbook.xml": "xlsx", "ppt/presentation.xml": "pptx"}
OLD_OFFICE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
ENCRYPTED_PACKAGE = "EncryptedPackage".encode("utf-16-le")
TEXT_BOMS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
SUFFIXES = {".csv": "csv", ".tsv": "csv", ".json": "json", ".htm": "html", ".html": "html", ".xhtml": "html"}
TYPES = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "application/json": "json",
    "text/csv": "csv",
    "text/tab-separated-values": "csv",
}
READABLE = "text, html, json, csv, pdf, docx, xlsx, pptx and images"
MAX_PACKED_PARTS = 10_000
MAX_UNPACKED_BYTES = 300 * 1024**2


def kind_of(source: Source) -> str:
    """One of pdf, docx, xlsx, pptx, image, audio, video, html, json, csv and text; else raise ``ReadProblem``."""
    body = source.body
    if b"%PDF-" in body[:1024]:
        return "pdf"
    if body.startswith(b"PK\x03\x04"):
        return _office_kind(body)
    if image_type(body):
        return "image"
    if body.startswith(OLD_OFFICE):
        raise ReadProblem(_about_old_office(body))
    told = _told_kind(source)
    if told in ("audio", "video"):
        return told
    if b"\0" in body[:8192] and not body.startswith(TEXT_BOMS):
        raise ReadProblem(f"this is a binary file of an unknown kind; what can be read is {READABLE}")
    if told == "text" and body[:1024].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    return told


def image_type(body: bytes) -> str:
    if body.startswith(b"RIFF") and body[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for magic, media_type in IMAGE_MAGIC if body.startswith(magic)), "")


def media_type_of(source: Source) -> str:
    declared = source.content_type.partition(";")[0].strip().lower()
    return declared or mimetypes.guess_type(source.name)[0] or ""


def _told_kind(source: Source) -> str:
    suffix = PurePosixPath(source.name).suffix.lower()
    media_type = media_type_of(source)
    family = media_type.partition("/")[0]
    if family in ("audio", "video"):
        return family
    return TYPES.get(media_type) or ("json" if media_type.endswith("+json") else SUFFIXES.get(suffix, "text"))


def _office_kind(body: bytes) -> str:
    try:
        parts = zipfile.ZipFile(io.BytesIO(body)).infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ReadProblem(f"this zip or office file is damaged ({error})") from error
    unpacked = sum(part.file_size for part in parts)
    if len(parts) > MAX_PACKED_PARTS or unpacked > MAX_UNPACKED_BYTES:
        raise ReadProblem(
            f"this file unpacks to {len(parts)} parts and {unpacked} bytes; at most {MAX_PACKED_PARTS} parts and "
            f"{MAX_UNPACKED_BYTES} bytes are unpacked"
        )
    for part in parts:
        if part.filename in OFFICE_PARTS:
            return OFFICE_PARTS[part.filename]
    names = ", ".join(part.filename for part in parts[:20])
    raise ReadProblem(f"this is a zip file, which is not unpacked; it holds {len(parts)} files: {names}")


def _about_old_office(body: bytes) -> str:
    if ENCRYPTED_PACKAGE in body:
        return "this office file is encrypted with a password; save it without one"
    return "this is an office file of the old binary formats (doc, xls, ppt); save it as docx, xlsx or pptx"
