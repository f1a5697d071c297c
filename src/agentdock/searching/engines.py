"""Which engines there are, and those that command line and environment ask for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentdock.searching.corpus import read_corpus
from agentdock.searching.hits import Engine
from agentdock.searching.local import LocalEngine
from agentdock.searching.services import SERVICES, Service
from agentdock.searching.web import WebEngine

LOCAL = "local"
ENGINES = (LOCAL, *SERVICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """``urls`` are ``ENGINE=URL`` texts that replace where a service is asked."""

    names: Sequence[str] = ()
    corpus: Path | None = None
    corpus_url: str = ""
    urls: Sequence[str] = ()
    timeout_seconds: float = 20.0
    proxy: str | None = None


def chosen_engines(wanted: Wanted, environ: Mapping[str, str]) -> list[Engine]:
    """The engines that are named, in their order; else the corpus alone, else each service whose variables are set.

    Raise ``ValueError`` or ``CorpusProblem``.
    """
    for name in wanted.names:
        if name not in ENGINES:
            raise ValueError(f"--engine {name}: there is no such engine; there are {', '.join(ENGINES)}")
    names = list(dict.fromkeys(wanted.names)) or _unnamed(wanted, environ)
    if wanted.corpus_url and not wanted.corpus:
        raise ValueError("--corpus-url says where --corpus is served; give that too")
    if wanted.corpus and LOCAL not in names:
        raise ValueError(f"--corpus is searched by the engine {LOCAL}: add --engine {LOCAL}")
    urls = _urls(wanted.urls, names)
    return [
        _local(wanted) if name == LOCAL else _web(SERVICES[name], wanted, environ, urls.get(name, "")) for name in names
    ]


def _unnamed(wanted: Wanted, environ: Mapping[str, str]) -> list[str]:
    if wanted.corpus:
        return [LOCAL]
    # A service without variables is not taken unasked: nobody agreed to be asked so.
    able = [
        s.name for s in SERVICES.values() if s.variables and all(environ.get(name, "").strip() for name in s.variables)
    ]
    if not able:
        ways = ", ".join(" and ".join(service.variables) for service in SERVICES.values() if service.variables)
        raise ValueError(f"no engine to search with: give --corpus FILE or FOLDER, or set {ways}")
    return able


def _urls(given: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for text in given:
        name, equals, url = text.partition("=")
        if not equals or not url.startswith(("http://", "https://")):
            raise ValueError(f"--url {text}: expected ENGINE=URL, for example serper=https://search.example/serper")
        if name not in SERVICES or name not in names:
            raise ValueError(f"--url {text}: {name!r} is not asked here; that are {', '.join(names)}")
        urls[name] = url
    return urls


def _local(wanted: Wanted) -> Engine:
    if wanted.corpus is None:
        raise ValueError(f"--engine {LOCAL}: needs --corpus FILE or FOLDER")
    read = read_corpus(wanted.corpus, base_url=wanted.corpus_url)
    if read.left_out:
        print(f"{wanted.corpus}: {len(read.left_out)} files hold no text, as {read.left_out[0]}", file=sys.stderr)
    return LocalEngine(read)


def _web(service: Service, wanted: Wanted, environ: Mapping[str, str], url: str) -> Engine:
    values = {name: environ.get(name, "").strip() for name in service.variables}
    missing = [name for name, value in values.items() if not value and not (url and name == service.url_variable)]
    if missing:
        raise ValueError(f"--engine {service.name}: needs the environment variable {' and '.join(missing)}")
    keys = {name: value for name, value in values.items() if value}
    for name, value in keys.items():
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError(f"{name} holds blanks or signs that no header can carry; set it to the bare key")
    base_url = url or keys.get(service.url_variable, "") or service.base_url
    if not base_url.startswith(("http://", "https://")):
        raise ValueError(f"{service.url_variable} must begin with http:// or https://")
    return WebEngine(service, keys, base_url=base_url, timeout_seconds=wanted.timeout_seconds, proxy=wanted.proxy)
