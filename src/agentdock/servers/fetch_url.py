"""``python -m agentdock.servers.fetch_url``: the tool ``fetch_url`` reads web pages and documents of the public web."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

from agentdock.fetching.fetcher import DEFAULT_BODY_BYTES, SafeFetcher
from agentdock.fetching.jina import Jina
from agentdock.fetching.pages import Pages, WebPage, is_retryable
from agentdock.fetching.policy import DEFAULT_PORTS
from agentdock.fetching.problems import FetchProblem
from agentdock.reading.document import Picture, ReadProblem
from agentdock.reading.paging import page_of
from agentdock.reading.workers import Readers
from agentdock.servers.serve import Answer, ServedTool, serve

MAX_URLS = 8
MAX_SHOWN_LINKS = 50
DEFAULT_CHARACTERS = 20_000
MAX_CHARACTERS = 200_000
DEFAULT_TOKENS = 24_000
SEPARATOR = "\n\n=======\n\n"
HAS_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?!\d)")


class PageTool:
    """Reads all URLs of a call together; each fails alone, and the budget of tokens is shared between them."""

    def __init__(self, pages: Pages, *, max_tokens: int) -> None:
        self._pages = pages
        self._max_tokens = max_tokens

    async def fetch_url(self, arguments: dict[str, Any]) -> Answer:
        urls = list(dict.fromkeys(_with_scheme(url) for url in arguments["url"]))
        outcomes = await asyncio.gather(*(self._read(url) for url in urls))
        shown = [self._shown(url, outcome, arguments, len(urls)) for url, outcome in zip(urls, outcomes, strict=True)]
        pictures = [outcome.document.picture for outcome in outcomes if isinstance(outcome, WebPage)]
        return Answer(
            text=SEPARATOR.join(text for text, _ in shown),
            is_error=all("error" in result for _, result in shown),
            structured={"purpose": arguments.get("purpose", ""), "results": [result for _, result in shown]},
            pictures=tuple(picture for picture in pictures if isinstance(picture, Picture)),
        )

    async def _read(self, url: str) -> WebPage | FetchProblem | ReadProblem:
        try:
            return await self._pages.read(url)
        except (FetchProblem, ReadProblem) as problem:
            return problem

    def _shown(
        self, url: str, outcome: WebPage | FetchProblem | ReadProblem, arguments: dict[str, Any], num_urls: int
    ) -> tuple[str, dict[str, Any]]:
        """The text that the model reads about ``url``, and the same in fields."""
        if not isinstance(outcome, WebPage):
            error = {"url": url, "error": str(outcome), "retryable": is_retryable(outcome)}
            return f"{url} was not read: {outcome}", error
        document = outcome.document
        part = page_of(
            document.text,
            offset=arguments.get("offset", 0),
            limit=arguments.get("limit", DEFAULT_CHARACTERS),
            max_tokens=max(1, self._max_tokens // num_urls),
        )
        links = [{"text": link.text, "url": link.url} for link in document.links]
        moved = f" (from {url})" if outcome.final_url != url else ""
        pieces = [
            f"# {document.title}" if document.title else "",
            f"{outcome.final_url}{moved} [{'; '.join((document.kind, *document.notes))}]",
            part.text,
            part.note,
            _link_lines(links) if arguments.get("links") else "",
        ]
        result = {
            "url": url,
            "final_url": outcome.final_url,
            "status": outcome.status,
            "content_type": outcome.content_type,
            "source": outcome.source,
            "kind": document.kind,
            "title": document.title,
            "notes": list(document.notes),
            "text": part.text,
            "offset": part.offset,
            "total_characters": part.total,
            "next_offset": part.next_offset,
            "links": links,
        }
        return "\n\n".join(piece for piece in pieces if piece), result

    def as_served(self) -> ServedTool:
        return ServedTool(
            name="fetch_url",
            description=(
                "Read web pages and documents (HTML, PDF, Office, text, images) from the web as text. "
                "Long ones come in parts; go on with offset."
            ),
            parameters={
                "type": "object",
                "properties": {
                    "url": {
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 1,
                        "maxItems": MAX_URLS,
                        "description": f"1 to {MAX_URLS} URLs",
                    },
                    "purpose": {"type": "string", "description": "what you want to know from the pages"},
                    "offset": {"type": "integer", "minimum": 0, "description": "first character; default 0"},
                    "limit": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_CHARACTERS,
                        "description": f"how many characters a page; default {DEFAULT_CHARACTERS}",
                    },
                    "links": {"type": "boolean", "description": "list the links of the pages too; default false"},
                },
                "required": ["url"],
                "additionalProperties": False,
                "examples": [
                    {"url": ["https://example.org/"], "purpose": "who runs the site"},
                    {"url": ["https://example.org/long"], "offset": 20000, "limit": 10000, "links": True},
                ],
            },
            run=self.fetch_url,
            read_only=True,
            open_world=True,
        )


def _with_scheme(url: str) -> str:
    url = url.strip()
    return url if "://" in url or HAS_SCHEME.match(url) else f"https://{url}"


def _link_lines(links: list[dict[str, str]]) -> str:
    lines = [f"- {link['text'] or link['url']}: {link['url']}" for link in links[:MAX_SHOWN_LINKS]]
    more = f"\n[{len(links) - MAX_SHOWN_LINKS} more links]" if len(links) > MAX_SHOWN_LINKS else ""
    return "Links:\n" + ("\n".join(lines) or "none") + more


def build(arguments: Sequence[str] | None) -> tuple[PageTool, Readers]:
    """The tool that command line and environment ask for; raise ``ValueError`` for values that mean nothing."""
    parser = argparse.ArgumentParser(
        prog="agentdock.servers.fetch_url",
        description=__doc__,
        epilog="Environment: AGENTDOCK_PROXY (URL of an HTTP proxy), JINA_API_KEY (for --jina-url).",
    )
    parser.add_argument("--allow", action="append", default=[], help="host:port or network to open; repeat")
    parser.add_argument("--port", type=int, action="append", default=[], help="a further port of public hosts; repeat")
    parser.add_argument("--max-body-mb", type=int, default=DEFAULT_BODY_BYTES // 1024**2)
    parser.add_argument("--max-redirects", type=int, default=5)
    parser.add_argument("--timeout-seconds", type=float, default=30.0, help="for one URL with its redirects")
    parser.add_argument("--read-seconds", type=float, default=60.0, help="deadline for reading one document")
    parser.add_argument("--max-tokens", type=int, default=DEFAULT_TOKENS, help="about how many a result may have")
    parser.add_argument("--keep-seconds", type=float, default=300.0, help="how long a page that was read is kept")
    parser.add_argument("--parallel", type=int, default=2, help="documents read at the same time")
    parser.add_argument("--jina-url", default="", help="reader service for pages that give nothing directly")
    options = parser.parse_args(arguments)
    proxy = os.environ.get("AGENTDOCK_PROXY") or None
    fetcher = SafeFetcher(
        options.allow,
        max_body_bytes=options.max_body_mb * 1024**2,
        max_redirects=options.max_redirects,
        timeout_seconds=options.timeout_seconds,
        ports=(*DEFAULT_PORTS, *options.port),
        proxy=proxy,
    )
    jina = None
    if options.jina_url:
        jina = Jina(options.jina_url, key=os.environ.get("JINA_API_KEY", ""), proxy=proxy)
    readers = Readers(parallel=options.parallel, timeout_seconds=options.read_seconds)
    pages = Pages(fetcher, readers, jina=jina, keep_seconds=options.keep_seconds)
    return PageTool(pages, max_tokens=options.max_tokens), readers


def main() -> None:
    try:
        tool, readers = build(None)
    except ValueError as problem:
        sys.exit(str(problem))
    serve(tool.as_served(), on_end=readers.close)


if __name__ == "__main__":
    main()
