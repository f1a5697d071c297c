"""The reader of PDF files: text by page, and a note for pages that are only pictures."""

from __future__ import annotations

import io

from agentdock.reading.document import Document, ReadProblem, Source, library

MIN_WORDS_CHARACTERS = 3


def read_pdf(source: Source) -> Document:
    pypdf = library("pypdf", "reading PDF")
    try:
        reader = pypdf.PdfReader(io.BytesIO(source.body))
        if reader.is_encrypted and not reader.decrypt(""):
            raise ReadProblem("this PDF is encrypted with a password; save it without one")
        texts = [page.extract_text().strip() for page in reader.pages]
        title = str((reader.metadata and reader.metadata.title) or "")
    except pypdf.errors.DependencyError as error:
        raise ReadProblem(f"this PDF is encrypted in a way that needs another library: {error}") from error
    except (pypdf.errors.PyPdfError, ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        # A damaged PDF surfaces as any of these, depending on which object is broken.
        raise ReadProblem(f"this PDF is damaged: {type(error).__name__}: {error}") from error
    shown = [f"[page {number}]\n{text}" for number, text in enumerate(texts, start=1) if text]
    return Document(kind="pdf", title=title, text="\n\n".join(shown), notes=_notes(texts))


def _notes(texts: list[str]) -> tuple[str, ...]:
    empty = [number for number, text in enumerate(texts, start=1) if len(text) < MIN_WORDS_CHARACTERS]
    pages = f"{len(texts)} page{'' if len(texts) == 1 else 's'}"
    if not empty:
        return (pages,)
    if len(empty) == len(texts):
        return (pages, "no page has text: this is a scanned PDF, whose pages are pictures; it would need OCR")
    return (pages, f"without text, probably scanned: page {_ranges(empty)}")


def _ranges(numbers: list[int]) -> str:
    """1, 2, 3, 7 as "1-3, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
