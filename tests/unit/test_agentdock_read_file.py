"""``read_file`` on real files made here: kinds, paging, roots, and documents that mean harm."""

import asyncio
import base64
import io
import os
import sys
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import docx
import jsonschema
import openpyxl
import pptx
import pypdf
import pytest
from PIL import Image

from agentdock.reading import Readers, ReadProblem
from agentdock.reading.charset import decoded
from agentdock.reading.document import Source
from agentdock.reading.html import PageText
from agentdock.reading.kinds import kind_of
from agentdock.reading.paging import num_tokens, page_of
from agentdock.reading.read import read
from agentdock.reading.roots import Roots
from agentdock.servers import read_file
from agentdock.servers.serve import Answer, argument_problem, coerced
from agentdock.spec import builtin_server
from agentdock.supervisor import Supervisor


def pdf_of(*texts: str) -> bytes:
    """A PDF of one page a text; an empty text is a page with a drawing only."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>", ""]
    kids = []
    for text in texts:
        stream = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET" if text else "0 0 100 100 re f"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
        font = "<< /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {len(objects)} 0 R "
            f"/Resources << /Font {font} >> >>"
        )
        kids.append(f"{len(objects)} 0 R")
    objects[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    out = b"%PDF-1.4\n"
    offsets = []
    for number, content in enumerate(objects, start=1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n{content}\nendobj\n".encode()
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    start = len(out)
    out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}".encode()
    return out + f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode()


def encrypted(body: bytes, user_password: str) -> bytes:
    writer = pypdf.PdfWriter(io.BytesIO(body))
    writer.encrypt(user_password=user_password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()


def saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def word() -> bytes:
    document = docx.Document()
    document.add_heading("Harbour plan", level=1)
    document.add_paragraph("Before the table.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "quay", "north|south"
    document.add_paragraph("After the table.")
    document.add_paragraph("an item", style="List Bullet")
    return saved(document)


def sheet() -> bytes:
    book = openpyxl.Workbook()
    first = book.active
    assert first is not None
    first.title = "Sales"
    for row in (["month", "tons"], ["May", 12], [], ["sum", "=SUM(B2:B2)"]):
        first.append(row)
    book.create_sheet("Aside").sheet_state = "hidden"
    return saved(book)


def slides() -> bytes:
    presentation = pptx.Presentation()
    slide = presentation.slides.add_slide(presentation.slide_layouts[1])
    slide.shapes.title.text = "Tides"
    slide.placeholders[1].text = "high at noon"
    slide.notes_slide.notes_text_frame.text = "speak slowly"
    return saved(presentation)


def picture(kind: str, side: int) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((side, side // 2), 90).save(out, kind)
    return out.getvalue()


GERMAN = "Die Züge nach Zürich führen über die Brücke. Für Gäste gibt es Frühstück im großen Café am Fluß. "
PAGE = """<!doctype html><html><head><title>The  Harbour</title><script>var x = "no";</script></head><body>
<nav><a href="/home">Home</a></nav><h1>Harbour</h1><p>First &amp; <b>bold</b> words.</p><ul><li>one<li>two</ul>
<p><a href="plan.pdf#p2">The plan</a></p><pre>  a
    b</pre></body></html>"""


@asynccontextmanager
async def reader(*args: str) -> AsyncIterator[Callable[..., object]]:
    tool, readers = read_file.build(args)

    async def call(**arguments: object) -> Answer:
        parameters = tool.as_served().parameters
        assert not argument_problem(parameters, arguments)
        return await tool.read_file(arguments)

    try:
        yield call
    finally:
        await readers.close()


def answers(root: Path, *calls: dict[str, object], options: tuple[str, ...] = ()) -> list[Answer]:
    async def play() -> list[Answer]:
        async with reader("--root", str(root), *options) as call:
            return [await call(**arguments) for arguments in calls]  # type: ignore[misc]

    return asyncio.run(play())


def test_every_kind_of_document_is_read_whatever_the_case_of_its_name(tmp_path: Path) -> None:
    files = {
        "REPORT.PDF": (pdf_of("Quay walls", "Second page"), "pdf", ["2 pages", "[page 1]\nQuay walls", "[page 2]"]),
        "Plan.DOCX": (
            word(),
            "docx",
            ["# Harbour plan\n\nBefore the table.\n\n| quay | north\\|south |\n| --- | --- |\n\nAfter", "- an item"],
        ),
        "sales.xlsx": (sheet(), "xlsx", ["# Sales", "| May | 12 |", "=SUM(B2:B2)", "2 sheets; hidden sheets: Aside"]),
        "talk.pptx": (slides(), "pptx", ["[slide 1]\n\nTides\n\nhigh at noon", "Notes: speak slowly", "1 slides"]),
        "table.csv": (b"a;b\n1;2\n", "csv", ["a;b\n1;2", "2 rows, 2 columns"]),
        "page.HTML": (PAGE.encode(), "html", ["# Harbour", "First & bold words.", "- one\n- two", "The Harbour"]),
        "facts.json": ('{"zürich":[1,2]}'.encode(), "json", ['"zürich": [\n']),
        "notes.txt": ("潮位 high\n".encode("utf-16"), "text", ["潮位 high"]),
        "no_suffix": (pdf_of("Found by its bytes"), "pdf", ["Found by its bytes"]),
    }
    for name, (body, _, _) in files.items():
        (tmp_path / name).write_bytes(body)
    found = answers(tmp_path, *({"uri": name} for name in files))
    for answer, (name, (_, kind, parts)) in zip(found, files.items(), strict=True):
        assert not answer.is_error, (name, answer.text)
        assert answer.structured is not None
        assert (answer.structured["kind"], answer.structured["path"]) == (kind, name)
        for part in parts:
            assert part in answer.text, (name, answer.text)


@pytest.mark.parametrize("name", ["long.txt", "long.pdf", "long.docx", "long.csv", "long.html", "long.json"])
def test_parts_of_a_long_document_add_up_to_the_whole(tmp_path: Path, name: str) -> None:
    words = " ".join(f"word{number}" for number in range(400))
    document = docx.Document()
    document.add_paragraph(words)
    bodies = {
        "txt": words.encode(),
        "pdf": pdf_of(words[:1500], words[1500:]),
        "docx": saved(document),
        "csv": "\n".join(words.split()).encode(),
        "html": f"<html><body><p>{words}</p></body></html>".encode(),
        "json": f'"{words}"'.encode(),
    }
    (tmp_path / name).write_bytes(bodies[name.rpartition(".")[2]])

    async def play() -> None:
        async with reader("--root", str(tmp_path)) as call:
            whole = (await call(uri=name)).structured  # type: ignore[misc]
            text, offset, rounds = "", 0, 0
            while offset is not None:
                answer = await call(uri=name, offset=offset, limit=1000)  # type: ignore[misc]
                assert len(answer.structured["text"]) <= 1000
                text += answer.structured["text"]
                offset = answer.structured["next_offset"]
                rounds += 1
                assert (f"more with offset={offset}" in answer.text) == (offset is not None)
            assert text == whole["text"]
            assert rounds >= 3
            behind = await call(uri=name, offset=10**6)  # type: ignore[misc]
            assert "is behind the end" in behind.text

    asyncio.run(play())


def test_a_scanned_pdf_says_so_and_a_mixed_one_names_its_pages(tmp_path: Path) -> None:
    (tmp_path / "scan.pdf").write_bytes(pdf_of("", ""))
    (tmp_path / "mixed.pdf").write_bytes(pdf_of("words", "", "", "words", ""))
    scan, mixed = answers(tmp_path, {"uri": "scan.pdf"}, {"uri": "mixed.pdf"})
    assert "this is a scanned PDF" in scan.text
    assert "without text, probably scanned: page 2-3, 5" in mixed.text


def test_an_encrypted_pdf_says_so_unless_its_password_is_empty(tmp_path: Path) -> None:
    (tmp_path / "shut.pdf").write_bytes(encrypted(pdf_of("hidden"), "secret"))
    (tmp_path / "open.pdf").write_bytes(encrypted(pdf_of("readable"), ""))
    shut, opened = answers(tmp_path, {"uri": "shut.pdf"}, {"uri": "open.pdf"})
    assert shut.is_error
    assert "encrypted with a password" in shut.text
    assert "readable" in opened.text


@pytest.mark.parametrize(
    ("name", "body", "problem"),
    [
        ("a.pdf", b"%PDF-1.7 nothing else", "this PDF is damaged"),
        ("a.docx", b"PK\x03\x04 nothing else", "damaged"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600), "old binary formats"),
        ("a.bin", b"ab\0cd", "binary file of an unknown kind"),
        ("a.mp3", b"ID3", "this is audio"),
        ("a.MP4", b"\0\0\0\x18ftypmp42", "this is video"),
        ("a.bmp", b"BM" + bytes(60), "this image is damaged"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(name: str, body: bytes, problem: str) -> None:
    with pytest.raises(ReadProblem, match=problem):
        read(Source(body=body, name=name))


def test_office_files_that_unpack_too_far_are_refused_before_they_are_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        for number in range(4):
            packed.writestr(f"xl/bomb{number}.xml", bytes(90 * 1024**2))
        packed.writestr("xl/workbook.xml", "")
    with pytest.raises(ReadProblem, match="this file unpacks to 5 parts and 377487360 bytes"):
        kind_of(Source(body=out.getvalue(), name="a.xlsx"))
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("inner.txt", "x")
    with pytest.raises(ReadProblem, match=r"a zip file, which is not unpacked; it holds 1 files: inner\.txt"):
        kind_of(Source(body=out.getvalue()))


def test_a_small_image_is_shown_as_it_is_and_a_large_one_scaled_down(tmp_path: Path) -> None:
    small, large = picture("PNG", 40), picture("PNG", 2400)
    (tmp_path / "small.png").write_bytes(small)
    (tmp_path / "large.png").write_bytes(large)
    (tmp_path / "plan.tiff").write_bytes(picture("TIFF", 40))
    shown, scaled, converted = answers(tmp_path, {"uri": "small.png"}, {"uri": "large.png"}, {"uri": "plan.tiff"})
    assert base64.b64decode(shown.pictures[0].base64) == small
    assert "2400 x 1200 pixels; shown as a JPEG of 1568 x 784 pixels" in scaled.text
    assert Image.open(io.BytesIO(base64.b64decode(scaled.pictures[0].base64))).size == (1568, 784)
    assert converted.pictures[0].media_type == "image/jpeg"


def test_transparent_images_become_white_where_nothing_is() -> None:
    out = io.BytesIO()
    Image.new("RGBA", (2000, 1000), (0, 0, 0, 0)).save(out, "TIFF")
    shown = read(Source(body=out.getvalue())).picture
    assert shown is not None
    assert Image.open(io.BytesIO(base64.b64decode(shown.base64))).getpixel((5, 5)) == (255, 255, 255)


@pytest.mark.parametrize(
    "uri",
    [
        "../secret.txt",
        "inside/../../secret.txt",
        "/etc/passwd",
        "/proc/self/environ",
        "file:///etc/passwd",
        "file:///etc/%70asswd",
        "link.txt",
        "folder_link/secret.txt",
        "~/secret.txt",
        "http://127.0.0.1/",
        "data:text/plain,x",
        "file://elsewhere/x",
        "a\0b",
        "",
    ],
)
def test_nothing_outside_of_the_roots_is_read(tmp_path: Path, uri: str) -> None:
    root = tmp_path / "root"
    (root / "inside").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text("the secret")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "folder_link").symlink_to(tmp_path)
    (answer,) = answers(root, {"uri": uri})
    assert answer.is_error
    assert "secret" not in answer.text.replace(uri, "")


def test_links_inside_file_urls_and_folders_work_and_names_are_suggested(tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("spaced")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "link.txt").symlink_to(tmp_path / "a b.txt")
    calls = ({"uri": f"file://{tmp_path}/a%20b.txt"}, {"uri": "deep/link.txt"}, {"uri": "."}, {"uri": "A_b.txt"})
    by_url, by_link, folder, missing = answers(tmp_path, *calls)
    assert "spaced" in by_url.text
    assert "spaced" in by_link.text
    assert "a b.txt\ndeep/" in folder.text
    assert missing.is_error
    assert "near it: a b.txt" in missing.text


def test_a_link_swapped_in_after_the_check_is_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "deep").mkdir(parents=True)
    (root / "deep" / "file.txt").write_text("fine")
    (tmp_path / "file.txt").write_text("the secret")
    roots = Roots.of([root])
    path = roots.find("deep/file.txt")
    (root / "deep").rename(root / "moved")
    (root / "deep").symlink_to(tmp_path)
    with pytest.raises(ReadProblem, match="cannot be opened"):
        roots.bytes_of(path)


def test_pipes_and_large_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large.txt").write_bytes(bytes(2 * 1024**2))
    pipe, large = answers(tmp_path, {"uri": "pipe"}, {"uri": "large.txt"}, options=("--max-file-mb", "1"))
    assert "not a regular file" in pipe.text
    assert "has 2097152 bytes; at most 1048576 are read" in large.text


def test_a_reader_that_hangs_or_dies_costs_its_deadline_and_the_next_document_is_read() -> None:
    async def play() -> None:
        readers = Readers(parallel=1, timeout_seconds=30)
        try:
            assert (await readers.read(Source(body=b"one"))).text == "one"
            (process,) = readers._idle
            process.kill()
            await process.wait()
            with pytest.raises(ReadProblem, match="died of it"):
                await readers.read(Source(body=b"two"))
            assert (await readers.read(Source(body=b"three"))).text == "three"
            readers._timeout_seconds = 0.05
            heavy = Source(body=b"<p>" * 2_000_000, content_type="text/html")
            with pytest.raises(ReadProblem, match=r"not read within 0\.05 s"):
                await readers.read(heavy)
            assert not readers._idle
        finally:
            await readers.close()

    asyncio.run(play())


def test_a_document_that_wants_too_much_memory_is_refused_by_its_process() -> None:
    async def play() -> None:
        readers = Readers(memory_bytes=200 * 1024**2)
        try:
            with pytest.raises(ReadProblem, match=r"more memory|died of it"):
                await readers.read(Source(body=b"[" + b"1," * 9_000_000 + b"1]", name="a.json"))
        finally:
            await readers.close()

    asyncio.run(play())


def test_a_missing_library_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pypdf", "docx", "openpyxl", "pptx", "PIL.Image", "PIL", "trafilatura", "charset_normalizer"):
        monkeypatch.setitem(sys.modules, name, None)
    for body, name in ((pdf_of("x"), "pypdf"), (word(), "docx"), (sheet(), "openpyxl"), (slides(), "pptx")):
        with pytest.raises(ReadProblem, match=rf"library {name}, .* pip install 'agentrl-mcp\[dock\]'"):
            read(Source(body=body))
    with pytest.raises(ReadProblem, match="library PIL"):
        read(Source(body=b"BM" + bytes(60)))
    assert read(Source(body=PAGE.encode())).kind == "html"
    assert read(Source(body="café".encode("cp1252"))).text == "café"
    assert read(Source(body=b"\x89PNG\r\n\x1a\n")).picture is not None


def test_a_page_keeps_its_order_its_links_and_nothing_hidden() -> None:
    page = PageText("http://site.test/dir/")
    page.feed(PAGE)
    assert page.title == "The Harbour"
    assert [(link.text, link.url) for link in page.links] == [
        ("Home", "http://site.test/home"),
        ("The plan", "http://site.test/dir/plan.pdf"),
    ]
    assert "var x" not in page.text
    assert "  a\n    b" in page.text


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("Zürich — 潮位".encode(), "text/html; charset=iso-8859-1"),
        ("Zürich — 潮位".encode("utf-16"), ""),
        (b'<meta charset="gb2312">' + "潮位表".encode("gb18030"), ""),
        ("潮位表".encode("gb18030"), "text/plain; charset=GBK"),
        ("潮位表の港".encode("shift_jis"), "text/plain; charset=shift_jis"),
        (b'<?xml version="1.0" encoding="windows-1251"?>' + "Порт".encode("cp1251"), ""),
        ("“quoted” café".encode("cp1252"), "text/html; charset=ISO-8859-1"),
        (GERMAN.encode("cp1252"), "text/html; charset=no-such-thing"),
    ],
)
def test_text_is_decoded_by_what_it_is_rather_than_by_what_it_is_called(body: bytes, content_type: str) -> None:
    text = decoded(body, content_type)
    assert any(part in text for part in ("Zürich", "潮位表", "Порт", "“quoted” café"))
    assert "\ufffd" not in text


def test_a_part_fits_its_budget_of_tokens_in_any_script() -> None:
    latin, wide = "tide " * 5000, "潮" * 5000
    assert num_tokens(page_of(latin, offset=0, limit=10**6, max_tokens=1000).text) <= 1000
    assert len(page_of(latin, offset=0, limit=10**6, max_tokens=1000).text) > 3000
    assert len(page_of(wide, offset=0, limit=10**6, max_tokens=1000).text) == 1000
    assert page_of("all of it", offset=0, limit=100, max_tokens=100).note == ""


def test_the_schema_takes_its_own_examples_and_nothing_else(tmp_path: Path) -> None:
    parameters = read_file.build(["--root", str(tmp_path)])[0].as_served().parameters
    jsonschema.Draft202012Validator.check_schema(parameters)
    for example in parameters["examples"]:
        jsonschema.validate(example, parameters)
        assert argument_problem(parameters, example) == ""
    for wrong in ({}, {"uri": 1}, {"uri": "a", "offset": -1}, {"uri": "a", "limit": 0}, {"uri": "a", "filename": "b"}):
        assert argument_problem(parameters, wrong)


def test_a_string_becomes_a_list_where_a_list_is_expected() -> None:
    strings = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 2}
    parameters = {"properties": {"query": strings, "text": {"type": "string"}}}
    assert coerced(parameters, {"query": "one", "text": "two"}) == {"query": ["one"], "text": "two"}
    assert coerced(parameters, {"query": '["one", "two"]'}) == {"query": ["one", "two"]}
    assert coerced(parameters, {"query": "42"}) == {"query": ["42"]}
    assert argument_problem(parameters, {"query": ["a", 1]}) == (
        "argument 'query' item 2: must be of type string, not int"
    )
    assert argument_problem(parameters, {"query": []}) == "argument 'query' has 0 items; it takes 1 to 2"
    assert argument_problem(parameters, {"query": ["a", "b", "c"]}) == "argument 'query' has 3 items; it takes 1 to 2"


def test_the_server_reads_a_file_through_mcp_and_refuses_roots_that_are_not_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("through the door")

    async def play() -> None:
        async with Supervisor([builtin_server("read_file", "--root", str(tmp_path))]) as supervisor:
            assert await supervisor.start() == {}
            outcome = await supervisor.call("read_file", "read_file", {"uri": "a.txt"}, timeout_seconds=10)
            assert "through the door" in outcome.text
        async with Supervisor([builtin_server("read_file", "--root", str(tmp_path / "none"))]) as supervisor:
            problems = await supervisor.start()
            assert "is not a folder" in str(problems["read_file"])

    asyncio.run(play())
