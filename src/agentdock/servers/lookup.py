"""``python -m agentdock.servers.lookup [--corpus FILE]``: the tool ``lookup`` searches a small corpus, offline."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from agentdock.searching.bm25 import Index
from agentdock.searching.corpus import CorpusProblem, Document, load_corpus
from agentdock.servers.serve import Answer, ServedTool, serve

DEFAULT_CORPUS = Path(__file__).with_name("corpus.jsonl")
DEFAULT_HITS = 3
MAX_HITS = 20
MAX_TEXT_CHARACTERS = 800


def lookup_tool(index: Index) -> ServedTool:
    async def lookup(arguments: dict[str, Any]) -> Answer:
        query, limit = arguments["query"], arguments.get("limit", DEFAULT_HITS)
        if not 1 <= limit <= MAX_HITS:
            return Answer(text=f"argument 'limit' must be between 1 and {MAX_HITS}, not {limit}", is_error=True)
        hits = index.search(query, limit)
        if not hits:
            return Answer(text=f"No document matches {query!r}. Try other or fewer words.")
        return Answer(text="\n".join(_hit_text(rank, hit) for rank, hit in enumerate(hits, start=1)))

    return ServedTool(
        name="lookup",
        description="Search a reference corpus by words. Returns the best matching texts.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "words to look for"},
                "limit": {"type": "integer", "description": f"how many texts, 1 to {MAX_HITS}; default {DEFAULT_HITS}"},
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        run=lookup,
        read_only=True,
    )


def _hit_text(rank: int, hit: Document) -> str:
    text = hit.text if len(hit.text) <= MAX_TEXT_CHARACTERS else hit.text[:MAX_TEXT_CHARACTERS] + " ..."
    return f"[{rank}] {hit.title}: {text}" if hit.title else f"[{rank}] {text}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="agentdock.servers.lookup", description=__doc__)
    parser.add_argument("--corpus", type=Path, default=DEFAULT_CORPUS, help="JSONL with title and text a line")
    try:
        documents = load_corpus(parser.parse_args().corpus)
    except CorpusProblem as problem:
        sys.exit(str(problem))
    serve(lookup_tool(Index(documents)))


if __name__ == "__main__":
    main()
