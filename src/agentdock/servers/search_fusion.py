"""``python -m agentdock.servers.search_fusion``: the tool ``search``, over texts of one's own or the web."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentdock.searching.corpus import CorpusProblem
from agentdock.searching.engines import ENGINES, Wanted, chosen_engines
from agentdock.searching.fusion import Found, Fusion
from agentdock.searching.hits import EngineFailed
from agentdock.servers.serve import Answer, ServedTool, serve

MAX_QUERIES = 8
DEFAULT_HITS = 5
MAX_HITS = 20
SEPARATOR = "\n\n=======\n\n"


class SearchTool:
    """Searches all queries of a call together; each fails alone."""

    def __init__(self, fusion: Fusion) -> None:
        self._fusion = fusion

    async def search(self, arguments: dict[str, Any]) -> Answer:
        queries = list(dict.fromkeys(arguments["query"]))
        num, engine = arguments.get("num", DEFAULT_HITS), arguments.get("engine", "")
        outcomes = await asyncio.gather(*(self._found(query, num, engine) for query in queries))
        return Answer(
            text=SEPARATOR.join(_shown(*pair) for pair in zip(queries, outcomes, strict=True)),
            is_error=all(isinstance(outcome, EngineFailed) for outcome in outcomes),
            structured={"results": [_fields(*pair) for pair in zip(queries, outcomes, strict=True)]},
        )

    async def _found(self, query: str, num: int, engine: str) -> Found | EngineFailed:
        if not query.strip():
            return EngineFailed("the query is empty; give words to look for", retryable=False)
        try:
            return await self._fusion.search(query, num, engine=engine)
        except EngineFailed as failure:
            return failure

    def as_served(self) -> ServedTool:
        names = self._fusion.names
        return ServedTool(
            name="search",
            description="Search by words. Gives title, URL and a passage of the best results for each query.",
            parameters={
                "type": "object",
                "properties": {
                    "query": {
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 1,
                        "maxItems": MAX_QUERIES,
                        "description": f"1 to {MAX_QUERIES} queries",
                    },
                    "num": {
                        "type": "integer",
                        "minimum": 1,
                        "maximum": MAX_HITS,
                        "description": f"how many results a query; default {DEFAULT_HITS}",
                    },
                    "engine": {
                        "type": "string",
                        "enum": list(names),
                        "description": f"ask this engine only; default: the first that answers of {', '.join(names)}",
                    },
                },
                "required": ["query"],
                "additionalProperties": False,
                "examples": [{"query": ["height of the Eiffel Tower", "Eiffel Tower opening year"], "num": 3}],
            },
            run=self.search,
            read_only=True,
            open_world=names != ("local",),
        )


def _shown(query: str, outcome: Found | EngineFailed) -> str:
    if isinstance(outcome, EngineFailed):
        return f"{query!r} was not searched: {outcome}"
    notes = "".join(f" [{reason}]" for reason in outcome.passed_over)
    if not outcome.hits:
        return f"{outcome.engine} has no results for {query!r}. Try other or fewer words.{notes}"
    lines = [f"{outcome.engine} results for {query!r}:{notes}"]
    for hit in outcome.hits:
        dated = f" ({hit.date})" if hit.date else ""
        lines += [f"{hit.rank}. {hit.title}{dated}", *(f"   {text}" for text in (hit.url, hit.snippet) if text)]
    return "\n".join(lines)


def _fields(query: str, outcome: Found | EngineFailed) -> dict[str, Any]:
    if isinstance(outcome, EngineFailed):
        return {"query": query, "error": str(outcome), "retryable": outcome.retryable}
    hits = [hit.as_fields() for hit in outcome.hits]
    return {"query": query, "engine": outcome.engine, "hits": hits, "passed_over": list(outcome.passed_over)}


def build(arguments: Sequence[str] | None, environ: Mapping[str, str]) -> tuple[SearchTool, Fusion]:
    """What command line and environment ask for; raise ``ValueError`` or ``CorpusProblem`` if that cannot search."""
    parser = argparse.ArgumentParser(
        prog="agentdock.servers.search_fusion",
        description=__doc__,
        epilog=f"Engines: {', '.join(ENGINES)}. Environment: their keys, AGENTDOCK_PROXY (URL of an HTTP proxy).",
    )
    parser.add_argument("--engine", action="append", default=[], help="repeat; the first that answers counts")
    parser.add_argument("--corpus", type=Path, help="JSONL with title, text, url a line, or a folder of texts and HTML")
    parser.add_argument("--corpus-url", default="", help="where the corpus is served; put before its relative URLs")
    parser.add_argument("--url", action="append", default=[], help="ENGINE=URL: ask a service there; repeat")
    parser.add_argument("--timeout-seconds", type=float, default=20.0, help="for one query at one engine")
    options = parser.parse_args(arguments)
    wanted = Wanted(
        names=options.engine,
        corpus=options.corpus,
        corpus_url=options.corpus_url,
        urls=options.url,
        timeout_seconds=options.timeout_seconds,
        proxy=environ.get("AGENTDOCK_PROXY") or None,
    )
    fusion = Fusion(chosen_engines(wanted, environ))
    return SearchTool(fusion), fusion


def main() -> None:
    try:
        tool, fusion = build(None, os.environ)
    except (ValueError, CorpusProblem) as problem:
        sys.exit(str(problem))
    serve(tool.as_served(), on_end=fusion.close)


if __name__ == "__main__":
    main()
