"""The reader of web pages: the main text by trafilatura where it is installed, else the whole page in order."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from urllib.parse import urljoin

from agentdock.reading.charset import decoded
from agentdock.reading.document import Document, Link, Source

HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "head", "iframe", "select"})
BLOCKS = frozenset(
    "address article aside blockquote dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr "
    "li main nav ol p pre section table tbody thead tfoot tr ul".split()
)
MIN_ARTICLE_CHARACTERS = 200
MIN_ARTICLE_SHARE = 0.1
MAX_LINKS = 300
SPACES = re.compile(r"[ \t\r\f\v\u00a0]+")
GAPS = re.compile(r"\s*\n[ \t]*\n(?:[ \t]*\n)*")


def read_html(source: Source) -> Document:
    page = decoded(source.body, source.content_type)
    whole = PageText(source.url)
    whole.feed(page)
    whole.close()
    article = _article(page, source.url)
    use_article = len(article) >= max(MIN_ARTICLE_CHARACTERS, MIN_ARTICLE_SHARE * len(whole.text))
    text = article if use_article else whole.text
    notes = () if text else ("the page has no text of its own; it may be drawn by a script",)
    return Document(kind="html", title=whole.title, text=text, links=tuple(whole.links), notes=notes)


def _article(page: str, url: str) -> str:
    try:
        import trafilatura
    except ImportError:
        return ""
    found = trafilatura.extract(
        page, url=url or None, output_format="markdown", include_links=False, include_tables=True, favor_recall=True
    )
    return (found or "").strip()


class PageText(HTMLParser):
    """A page as lines in document order: headings with ``#``, items with ``-``, cells with ``|``."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[Link] = []
        self.title = ""
        self._base = url
        self._out: list[str] = []
        self._hidden: list[str] = []
        self._in_title = False
        self._preformatted = 0
        self._anchor: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        return GAPS.sub("\n\n", "".join(self._out)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "title":
            self._in_title = not self.title
        elif tag == "base" and values.get("href"):
            self._base = urljoin(self._base, values["href"] or "")
        elif tag == "body":
            # A head that was never closed must not hide the page.
            self._hidden = []
        elif tag in HIDDEN:
            self._hidden.append(tag)
        elif tag == "br":
            self._out.append("\n")
        elif tag in ("td", "th"):
            self._out.append(" | ")
        elif tag == "a" and values.get("href"):
            self._anchor = (values["href"] or "", len(self._out))
        elif tag in BLOCKS:
            self._preformatted += tag == "pre"
            self._out.append("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")
            self._out.append(f"{'#' * int(tag[1])} " if re.fullmatch(r"h[1-6]", tag) else "- " if tag == "li" else "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in self._hidden:
            del self._hidden[self._hidden.index(tag) :]
        elif tag == "a":
            self._end_link()
        elif tag in BLOCKS:
            self._preformatted -= tag == "pre"
            self._out.append("\n" if tag in ("li", "tr", "dt", "dd") else "\n\n")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = SPACES.sub(" ", f"{self.title}{data}".replace("\n", " ")).strip()
        elif not self._hidden:
            self._out.append(data if self._preformatted > 0 else self._flowing(data))

    def _flowing(self, data: str) -> str:
        text = SPACES.sub(" ", data.replace("\n", " "))
        last = next((part for part in reversed(self._out) if part), "\n")
        return text.lstrip() if last.endswith("\n") else text

    def _end_link(self) -> None:
        if self._anchor is None:
            return
        href, start = self._anchor
        self._anchor = None
        text = " ".join("".join(self._out[start:]).split())
        try:
            url = urljoin(self._base, href.strip())
        except ValueError:
            return
        link = Link(text=text, url=url.partition("#")[0])
        if url.startswith(("http://", "https://")) and len(self.links) < MAX_LINKS and link not in self.links:
            self.links.append(link)
