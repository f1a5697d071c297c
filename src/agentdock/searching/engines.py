"""Which engines there are, and those that command line and environment ask for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentdock.searching.corpus import read_corpus
from agentdock.searching.hits import Engine
from agentdock.searching.local import LocalEngine

LOCAL = "local"
ENGINES = (LOCAL,)


def chosen_engines(
    names: Sequence[str], environ: Mapping[str, str], *, corpus: Path | None, corpus_url: str = ""
) -> list[Engine]:
    """The engines ``names`` in their order; without names the corpus. Raise ``ValueError`` or ``CorpusProblem``."""
    for name in names:
        if name not in ENGINES:
            raise ValueError(f"--engine {name}: there is no such engine; there are {', '.join(ENGINES)}")
    wanted = list(dict.fromkeys(names)) or ([LOCAL] if corpus else [])
    if not wanted:
        raise ValueError("no engine to search with: give --corpus FILE or FOLDER")
    if corpus and LOCAL not in wanted:
        raise ValueError(f"--corpus is searched by the engine {LOCAL}: add --engine {LOCAL}")
    return [_local(corpus, corpus_url) for _ in wanted]


def _local(corpus: Path | None, corpus_url: str) -> Engine:
    if corpus is None:
        raise ValueError(f"--engine {LOCAL}: needs --corpus FILE or FOLDER")
    read = read_corpus(corpus, base_url=corpus_url)
    if read.left_out:
        print(f"{corpus}: {len(read.left_out)} files hold no text, as {read.left_out[0]}", file=sys.stderr)
    return LocalEngine(read)
