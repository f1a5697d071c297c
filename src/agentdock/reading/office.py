"""Readers of Word, Excel and PowerPoint files (docx, xlsx, pptx), in reading order, tables as Markdown rows."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from agentdock.reading.document import Document, ReadProblem, Source, library

HEADING = re.compile(r"Heading (\d)")
# What the libraries raise on a file whose inside is not what its name says.
DAMAGE = (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, IndexError, OSError, SyntaxError)


def read_docx(source: Source) -> Document:
    docx = library("docx", "reading docx")

    def read() -> Document:
        document = docx.Document(io.BytesIO(source.body))
        blocks = (
            _paragraph(block)
            if hasattr(block, "runs")
            else _table([cell.text for cell in row.cells] for row in block.rows)
            for block in document.iter_inner_content()
        )
        text = "\n\n".join(block for block in blocks if block)
        return Document(kind="docx", title=document.core_properties.title or "", text=text)

    return _undamaged("docx", read)


def read_xlsx(source: Source) -> Document:
    """Values as last calculated; a formula that was never calculated is shown itself."""
    openpyxl = library("openpyxl", "reading xlsx")

    def read() -> Document:
        values = openpyxl.load_workbook(io.BytesIO(source.body), read_only=True, data_only=True)
        formulas = openpyxl.load_workbook(io.BytesIO(source.body), read_only=True)
        sheets = [
            f"# {sheet.title}\n\n{_table(_cells(sheet.values, formulas[sheet.title].values))}".rstrip()
            for sheet in values.worksheets
        ]
        hidden = [sheet.title for sheet in values.worksheets if sheet.sheet_state != "visible"]
        notes = (f"{len(sheets)} sheets", *([f"hidden sheets: {', '.join(hidden)}"] if hidden else []))
        return Document(kind="xlsx", title=values.properties.title or "", text="\n\n".join(sheets), notes=notes)

    return _undamaged("xlsx", read)


def read_pptx(source: Source) -> Document:
    pptx = library("pptx", "reading pptx")

    def read() -> Document:
        presentation = pptx.Presentation(io.BytesIO(source.body))
        slides = [
            "\n\n".join([f"[slide {number}]", *_shape_texts(slide.shapes), *_speaker_notes(slide)])
            for number, slide in enumerate(presentation.slides, start=1)
        ]
        title = presentation.core_properties.title or ""
        return Document(kind="pptx", title=title, text="\n\n".join(slides), notes=(f"{len(slides)} slides",))

    return _undamaged("pptx", read)


def _undamaged(kind: str, read: Callable[[], Document]) -> Document:
    try:
        return read()
    except DAMAGE as error:
        raise ReadProblem(f"this {kind} file is damaged: {type(error).__name__}: {error}") from error


def _paragraph(paragraph: Any) -> str:
    text = paragraph.text.strip()
    style = (paragraph.style and paragraph.style.name) or ""
    heading = HEADING.fullmatch(style)
    if not text or style == "Normal":
        return text
    if heading or style == "Title":
        return f"{'#' * (int(heading[1]) if heading else 1)} {text}"
    return f"- {text}" if style.startswith("List") else text


def _cells(values: Iterable[Any], formulas: Iterable[Any]) -> Iterator[list[str]]:
    for row, formula_row in zip(values, formulas, strict=False):
        cells = [_cell(formula if value is None else value) for value, formula in zip(row, formula_row, strict=False)]
        while cells and not cells[-1]:
            cells.pop()
        if cells:
            yield cells


def _cell(value: Any) -> str:
    if isinstance(value, datetime) and value.time() == datetime.min.time():
        return value.date().isoformat()
    return "" if value is None else str(value)


def _table(rows: Iterable[list[str]]) -> str:
    lines = [[cell.replace("|", "\\|").replace("\n", " ").strip() for cell in row] for row in rows]
    width = max((len(line) for line in lines), default=0)
    shown = ["| " + " | ".join(line + [""] * (width - len(line))) + " |" for line in lines]
    return "\n".join([*shown[:1], "|" + " --- |" * width, *shown[1:]]) if shown else ""


def _shape_texts(shapes: Iterable[Any]) -> Iterator[str]:
    for shape in shapes:
        if hasattr(shape, "shapes"):
            yield from _shape_texts(shape.shapes)
        elif getattr(shape, "has_table", False):
            yield _table([cell.text for cell in row.cells] for row in shape.table.rows)
        elif shape.has_text_frame and shape.text_frame.text.strip():
            yield shape.text_frame.text.replace("\v", "\n").strip()


def _speaker_notes(slide: Any) -> list[str]:
    frame = slide.notes_slide.notes_text_frame if slide.has_notes_slide else None
    return [f"Notes: {frame.text.strip()}"] if frame is not None and frame.text.strip() else []
