"""Search services as their documentation describes them, served on loopback: requests, answers, refusals, keys."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from time import time
from typing import Any

import pytest
from aiohttp import web

from agentdock.searching.engines import Wanted, chosen_engines
from agentdock.searching.hits import EngineFailed, Hit
from agentdock.searching.services import SERVICES
from agentdock.searching.web import rest_seconds
from agentdock.servers import search_fusion
from agentdock.spec import builtin_server
from agentdock.supervisor import Supervisor

KEYS = {name: f"secret-of-{name.lower()}" for service in SERVICES.values() for name in service.variables}
A, B = "https://a.test/", "https://b.test/?x=1&y=2"
DUCK = """<html><body><div class="result results_links result--ad"><a class="result__a" href="https://ad.test/">Ad</a>
<a class="result__snippet">Buy</a></div>
<div class="result links"><a class="result__a" href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fa.test%2F&amp;r=1">
A <b>page</b></a><a class="result__snippet" href="x">About <b>a</b></a></div>
<div class="result"><a class="result__a" href="https://b.test/?x=1&amp;y=2">B</a></div></body></html>"""

ANSWERS: dict[str, Any] = {
    "serper": {
        "searchParameters": {"q": "x"},
        "organic": [
            {"title": "A page", "link": A, "snippet": "About a", "date": "2 May 2020", "position": 1},
            {"title": "B", "link": B, "position": 2},
        ],
    },
    "google": {"items": [{"title": "A page", "link": A, "snippet": "About a"}, {"title": "B", "link": B}]},
    "exa": {"results": [{"title": "A page", "url": A, "text": "About a"}, {"title": "B", "url": B, "text": None}]},
    "tavily": {"results": [{"title": "A page", "url": A, "content": "About a", "score": 1}, {"title": "B", "url": B}]},
    "jina": {"code": 200, "data": [{"title": "A page", "url": A, "description": "About a"}, {"title": "B", "url": B}]},
    "searxng": {"results": [{"title": "A page", "url": A, "content": "About a"}, {"title": "B", "url": B}]},
    "duckduckgo": DUCK,
}
NOTHING: dict[str, Any] = {
    "serper": {"organic": []},
    "google": {"searchInformation": {"totalResults": "0"}},
    "exa": {"results": []},
    "tavily": {"results": []},
    "jina": {"data": []},
    "searxng": {"results": []},
    "duckduckgo": '<html><div class="no-results">No results.</div></html>',
}
ASKED: dict[str, tuple[str, str, dict[str, str], Any]] = {
    "serper": ("POST", "/search", {"X-API-KEY": KEYS["SERPER_API_KEY"]}, {"q": "two words", "num": 2}),
    "google": ("GET", f"/customsearch/v1?q=two+words&num=2&cx={KEYS['GOOGLE_CSE_ID']}", {}, None),
    "exa": (
        "POST",
        "/search",
        {"x-api-key": KEYS["EXA_API_KEY"]},
        {"query": "two words", "numResults": 2, "contents": {"text": {"maxCharacters": 500}}},
    ),
    "tavily": (
        "POST",
        "/search",
        {"Authorization": f"Bearer {KEYS['TAVILY_API_KEY']}"},
        {"query": "two words", "max_results": 2},
    ),
    "jina": (
        "POST",
        "/",
        {"Authorization": f"Bearer {KEYS['JINA_API_KEY']}", "X-Respond-With": "no-content"},
        {"q": "two words", "num": 2},
    ),
    "searxng": ("GET", "/search?q=two+words&format=json", {}, None),
    "duckduckgo": ("POST", "/html/", {}, "q=two+words"),
}


@dataclass(slots=True)
class Web:
    """Answers everything alike; ``asked`` are method, path, headers and body."""

    answer: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], str]] = field(default_factory=list)
    root: str = ""

    async def serve(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.raw_path, dict(request.headers), await request.text()))
        is_page = isinstance(self.answer, str)
        text = self.answer if is_page else json.dumps(self.answer)
        kind = "text/html" if is_page else "application/json"
        return web.Response(text=text, status=self.status, headers=self.headers, content_type=kind)


@asynccontextmanager
async def serving(**given: Any) -> AsyncIterator[Web]:
    pages = Web(**given)
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", pages.serve)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pages.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield pages
    finally:
        await runner.cleanup()


async def searched(name: str, root: str, num: int = 2, **wanted: Any) -> list[Hit]:
    (engine,) = chosen_engines(Wanted(names=[name], urls=[f"{name}={root}"], **wanted), KEYS)
    try:
        return list(await engine.search("two words", num))
    finally:
        await engine.close()


async def failed(name: str, root: str, **wanted: Any) -> EngineFailed:
    with pytest.raises(EngineFailed) as failure:
        await searched(name, root, **wanted)
    return failure.value


def refused(name: str, check: Callable[[EngineFailed], None], **given: Any) -> None:
    async def main() -> None:
        async with serving(**given) as pages:
            check(await failed(name, pages.root))

    asyncio.run(main())


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_asked_in_its_form_and_its_answer_becomes_hits(name: str) -> None:
    async def main() -> None:
        async with serving(answer=ANSWERS[name]) as pages:
            hits = await searched(name, pages.root)
            assert [(hit.rank, hit.title, hit.url, hit.snippet, hit.engine) for hit in hits] == [
                (1, "A page", A, "About a", name),
                (2, "B", B, "", name),
            ]
            assert hits[0].date == ("2 May 2020" if name == "serper" else "")
            assert len(await searched(name, pages.root, num=1)) == 1
        method, path, headers, body = pages.asked[0]
        wanted_method, wanted_path, wanted_headers, wanted_body = ASKED[name]
        assert (method, path) == (wanted_method, wanted_path)
        assert wanted_headers.items() <= headers.items()
        assert (json.loads(body) if body.startswith("{") else body or None) == wanted_body

    asyncio.run(main())


@pytest.mark.parametrize("name", SERVICES)
def test_no_results_are_an_answer(name: str) -> None:
    async def main() -> None:
        async with serving(answer=NOTHING[name]) as pages:
            assert await searched(name, pages.root) == []

    asyncio.run(main())


def test_the_key_of_google_goes_in_a_header_and_at_most_ten_are_asked_for() -> None:
    async def main() -> None:
        async with serving(answer={}) as pages:
            await searched("google", pages.root, num=20)
        _, path, headers, _ = pages.asked[0]
        assert headers["X-Goog-Api-Key"] == KEYS["GOOGLE_API_KEY"]
        assert KEYS["GOOGLE_API_KEY"] not in path
        assert "num=10" in path

    asyncio.run(main())


@pytest.mark.parametrize("status", [401, 402, 403])
def test_a_refused_key_is_said_by_its_variable_and_never_shown(status: int) -> None:
    def check(failure: EngineFailed) -> None:
        assert str(failure) == (
            f'serper answered HTTP {status}: {{"message": "no credit for [SERPER_API_KEY]"}}'
            " - see what SERPER_API_KEY holds and what it pays for"
        )
        assert not failure.retryable

    refused("serper", check, status=status, answer={"message": f"no credit for {KEYS['SERPER_API_KEY']}"})


def test_a_busy_service_rests_as_long_as_it_says() -> None:
    def check(failure: EngineFailed) -> None:
        assert failure.retryable
        assert failure.rest_seconds == 17
        assert str(failure) == 'exa answered HTTP 429: {"error": "slow"}'

    refused("exa", check, status=429, headers={"Retry-After": "17"}, answer={"error": "slow"})
    refused("exa", lambda failure: check_rest(failure, 10.0), status=429, answer={})
    refused("exa", lambda failure: check_rest(failure, 0.0), status=502, answer="<html>bad gateway</html>")
    refused("exa", lambda failure: check_rest(failure, 5.0), status=503, headers={"Retry-After": "5"}, answer={})


def check_rest(failure: EngineFailed, seconds: float) -> None:
    assert failure.retryable
    assert failure.rest_seconds == seconds
    assert "<html>" not in str(failure)


def test_retry_after_may_be_a_date_and_has_an_end() -> None:
    assert 20 < rest_seconds(formatdate(time() + 60, usegmt=True)) <= 60
    assert rest_seconds(formatdate(time() - 60, usegmt=True)) == 0
    assert rest_seconds("999999") == 3600
    assert rest_seconds("soon") == rest_seconds("") == 0


def test_searxng_without_json_says_the_setting() -> None:
    def check(failure: EngineFailed) -> None:
        assert "searxng answered HTTP 403 - add json to search.formats in its settings.yml" in str(failure)

    refused("searxng", check, status=403, answer="<html>Forbidden</html>")


@pytest.mark.parametrize(("status", "page"), [(202, "<html></html>"), (200, '<div class="anomaly-modal__mask"></div>')])
def test_duckduckgo_that_wants_a_person_is_no_empty_answer(status: int, page: str) -> None:
    refused("duckduckgo", lambda failure: assert_said(failure, "wants a person"), status=status, answer=page)


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("serper", "<html>login</html>", "serper answered something else than JSON"),
        ("serper", {"organic": {"a": 1}}, "serper answered JSON without a list 'organic'"),
        ("tavily", ["a"], "tavily answered JSON without a list 'results'"),
        ("duckduckgo", "<html>a new design</html>", "answered a page without results that does not say that"),
    ],
)
def test_an_answer_in_another_form_is_a_failure_and_not_an_empty_list(name: str, answer: Any, said: str) -> None:
    refused(name, lambda failure: assert_said(failure, said), answer=answer)


def assert_said(failure: EngineFailed, said: str) -> None:
    assert said in str(failure)
    assert not failure.retryable


def test_redirects_are_not_followed_with_the_key() -> None:
    async def main() -> None:
        async with serving() as other, serving(status=302, headers={"Location": other.root}) as pages:
            assert "redirects are not followed" in str(await failed("tavily", pages.root))
            assert other.asked == []

    asyncio.run(main())


def test_silence_and_absence_are_failures_that_may_pass() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        root = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        failure = await failed("jina", root, timeout_seconds=0.2)
        assert (str(failure), failure.retryable) == ("jina gave no answer within 0.2 s", True)
        server.close()
        failure = await failed("jina", root)
        assert str(failure).startswith("jina failed: ")
        assert failure.retryable

    asyncio.run(main())


def test_without_names_every_service_with_its_keys_is_searched_in_the_order_of_the_table() -> None:
    def names(**environ: str) -> list[str]:
        return [engine.name for engine in chosen_engines(Wanted(), environ)]

    assert names(TAVILY_API_KEY="t", SERPER_API_KEY="s") == ["serper", "tavily"]
    assert names(GOOGLE_API_KEY="g", EXA_API_KEY="e", JINA_API_KEY=" ") == ["exa"]
    assert names(SEARXNG_URL="http://127.0.0.1:8888") == ["searxng"]
    both = chosen_engines(Wanted(names=["tavily", "serper", "tavily"]), KEYS)
    assert [engine.name for engine in both] == ["tavily", "serper"]


@pytest.mark.parametrize(
    ("arguments", "environ", "problem"),
    [
        ([], {}, "or set SERPER_API_KEY, GOOGLE_API_KEY and GOOGLE_CSE_ID, EXA_API_KEY"),
        (["--engine", "serper"], {}, "--engine serper: needs the environment variable SERPER_API_KEY"),
        (["--engine", "google"], {"GOOGLE_API_KEY": "k"}, "needs the environment variable GOOGLE_CSE_ID"),
        (["--engine", "exa"], {"EXA_API_KEY": "a\nb"}, "EXA_API_KEY holds blanks or signs"),
        (["--engine", "searxng"], {"SEARXNG_URL": "search.test"}, "SEARXNG_URL must begin with http"),
        (["--engine", "serper", "--corpus", "x"], {"SERPER_API_KEY": "k"}, "add --engine local"),
        (["--engine", "duckduckgo", "--corpus-url", "http://x"], {}, "--corpus-url says where --corpus is served"),
        (["--engine", "duckduckgo", "--url", "duckduckgo"], {}, "--url duckduckgo: expected ENGINE=URL"),
        (["--engine", "duckduckgo", "--url", "exa=http://x"], {}, "'exa' is not asked here; that are duckduckgo"),
    ],
)
def test_what_cannot_search_is_refused_by_option_or_variable(
    arguments: list[str], environ: dict[str, str], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        search_fusion.build(arguments, environ)
    assert "a\nb" not in str(refusal.value)


def test_the_server_takes_keys_from_its_environment_and_falls_over_to_the_next_engine() -> None:
    async def main() -> None:
        async with serving(status=500, answer={}) as broken, serving(answer=ANSWERS["tavily"]) as good:
            arguments = ["--engine", "serper", "--engine", "tavily"]
            arguments += ["--url", f"serper={broken.root}", "--url", f"tavily={good.root}"]
            spec = builtin_server("search-fusion", *arguments)
            keys = {name: KEYS[name] for name in ("SERPER_API_KEY", "TAVILY_API_KEY")}
            with_keys = type(spec)(name=spec.name, command=spec.command, args=spec.args, env={**spec.env, **keys})
            async with Supervisor([with_keys]) as supervisor:
                assert await supervisor.start() == {}
                outcome = await supervisor.call("search-fusion", "search", {"query": "x"}, timeout_seconds=10)
                alone = {"query": ["x"], "engine": "serper"}
                named = await supervisor.call("search-fusion", "search", alone, timeout_seconds=10)
        assert "tavily results for 'x': [serper answered HTTP 500: {}]\n1. A page\n   https://a.test/" in outcome.text
        assert named.is_error
        assert "'x' was not searched: serper answered HTTP 500" in named.text

    asyncio.run(main())


def test_a_proxy_is_asked_in_place_of_the_service() -> None:
    async def main() -> None:
        async with serving(answer=ANSWERS["serper"]) as proxy:
            wanted = Wanted(names=["serper"], urls=["serper=http://search.test"], proxy=proxy.root)
            (engine,) = chosen_engines(wanted, KEYS)
            assert len(await engine.search("x", 2)) == 2
            await engine.close()
        assert proxy.asked[0][1] in ("http://search.test/search", "/search")

    asyncio.run(main())
