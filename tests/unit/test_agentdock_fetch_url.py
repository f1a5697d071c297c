"""``fetch_url`` over real HTTP on loopback: pages, documents, paging, failures, the reader service."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import docx
import jsonschema
import pytest
from aiohttp import web

from agentdock.fetching.recent import Recent
from agentdock.servers import fetch_url
from agentdock.servers.serve import Answer, argument_problem, coerced
from agentdock.spec import builtin_server
from agentdock.supervisor import Supervisor

ARTICLE = " ".join(f"The harbour of part {number} is deep and calm." for number in range(60))
PAGE = f"""<!doctype html><html><head><title>Harbour</title></head><body><nav><a href="/home">Home menu</a></nav>
<article><h1>The harbour</h1><p>{ARTICLE}</p><p>See <a href="plan">the plan</a>.</p></article>
<footer>cookies and more</footer></body></html>"""
DRAWN = "<html><head><title>App</title></head><body><div id=root></div><script>draw()</script></body></html>"

Call = Callable[..., Awaitable[Answer]]


class Site:
    """Counts what it is asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.root = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        html = {"content_type": "text/html", "charset": "utf-8"}
        match request.path:
            case "/page":
                return web.Response(text=PAGE, **html)
            case "/moved":
                raise web.HTTPFound("/page")
            case "/drawn":
                return web.Response(text=DRAWN, **html)
            case "/busy":
                return web.Response(status=503, text="come back later")
            case "/gbk":
                return web.Response(body="<p>潮位表".encode("gbk"), headers={"Content-Type": "text/html; charset=gbk"})
            case "/plan":
                document = docx.Document()
                document.add_paragraph("from the office")
                document.save(path := self.folder / "plan.docx")
                return web.Response(body=path.read_bytes())
            case "/binary":
                return web.Response(body=b"ab\0cd")
            case "/words":
                return web.Response(text=" ".join(f"word{number}" for number in range(2000)))
        raise web.HTTPNotFound(text="no such page")


@asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    pages = Site(folder)
    application = web.Application()
    application.router.add_get("/{path:.*}", pages.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pages.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield pages
    finally:
        await runner.cleanup()


@asynccontextmanager
async def fetching(*options: str) -> AsyncIterator[Call]:
    tool, readers = fetch_url.build(options)
    parameters = tool.as_served().parameters

    async def call(**arguments: Any) -> Answer:
        arguments = coerced(parameters, arguments)
        assert argument_problem(parameters, arguments) == ""
        return await tool.fetch_url(arguments)

    try:
        yield call
    finally:
        await readers.close()


def play(folder: Path, scene: Callable[[Site, Call], Awaitable[None]], *options: str) -> None:
    async def main() -> None:
        async with site(folder) as pages, fetching("--allow", pages.root[7:], *options) as call:
            await scene(pages, call)

    asyncio.run(main())


def results(answer: Answer) -> list[dict[str, Any]]:
    assert answer.structured is not None
    return answer.structured["results"]


def test_a_page_is_its_main_text_with_title_links_and_where_it_came_from(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        answer = await call(url=f"{pages.root}/moved", purpose="how deep is it", links=True)
        assert answer.structured is not None
        assert answer.structured["purpose"] == "how deep is it"
        (result,) = results(answer)
        assert (result["title"], result["status"], result["kind"], result["source"]) == (
            "Harbour",
            200,
            "html",
            "direct",
        )
        assert (result["final_url"], result["next_offset"]) == (f"{pages.root}/page", None)
        assert {"text": "the plan", "url": f"{pages.root}/plan"} in result["links"]
        assert ARTICLE in answer.text
        assert "cookies" not in result["text"]
        assert f"{pages.root}/page (from {pages.root}/moved)" in answer.text
        assert f"- the plan: {pages.root}/plan" in answer.text

    play(tmp_path, scene)


def test_one_bad_url_does_not_lose_the_others_and_documents_are_read(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        urls = [
            *(f"{pages.root}/{path}" for path in ("plan", "gone", "busy", "binary", "gbk", "plan")),
            "http://169.254.169.254/latest",
            "file:///etc/passwd",
        ]
        answer = await call(url=urls)
        plan, gone, busy, binary, gbk, metadata, file = results(answer)
        assert not answer.is_error
        assert (plan["kind"], plan["text"]) == ("docx", "from the office")
        assert (gone["error"], gone["retryable"]) == ("HTTP 404 Not Found: no such page", False)
        assert (busy["error"], busy["retryable"]) == ("HTTP 503 Service Unavailable: come back later", True)
        assert "binary file" in binary["error"]
        assert gbk["text"] == "潮位表"
        assert metadata["error"].startswith("refused (metadata)")
        assert file["error"].startswith("refused (scheme)")
        assert f"{pages.root}/gone was not read: HTTP 404" in answer.text

    play(tmp_path, scene)


def test_if_no_url_is_read_the_call_is_an_error(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        answer = await call(url=["localhost/x", "user@127.0.0.1", "javascript:alert(1)", "[::1]"])
        assert answer.is_error
        rules = [result["error"].partition(":")[0] for result in results(answer)]
        assert rules == ["refused (loopback)", "refused (userinfo)", "refused (scheme)", "refused (loopback)"]

    play(tmp_path, scene)


def test_parts_of_a_page_add_up_and_are_fetched_once(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        text, offset = "", 0
        while offset is not None:
            answer = await call(url=f"{pages.root}/words", offset=offset, limit=4000)
            (result,) = results(answer)
            assert 0 < len(result["text"]) <= 4000
            text += result["text"]
            offset = result["next_offset"]
            assert offset is None or f"more with offset={offset}" in answer.text
        assert text == " ".join(f"word{number}" for number in range(2000))
        assert pages.asked == ["/words"]

    play(tmp_path, scene)


def test_the_budget_of_tokens_is_shared_between_the_pages_of_a_call(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        (alone,) = results(await call(url=f"{pages.root}/words"))
        both = results(await call(url=[f"{pages.root}/words", f"{pages.root}/page"]))
        assert 3000 < len(alone["text"]) <= 4000
        assert all(1500 < len(result["text"]) <= 2000 for result in both)

    play(tmp_path, scene, "--max-tokens", "1000")


@asynccontextmanager
async def service(status: int = 200, body: str | None = None) -> AsyncIterator[tuple[str, list[tuple[str, str]]]]:
    """A reader service on loopback; gives its URL and what it was asked, with the authorization."""
    asked: list[tuple[str, str]] = []

    async def read(request: web.Request) -> web.Response:
        asked.append((request.raw_path[1:], request.headers.get("Authorization", "")))
        drawn = {"code": 200, "data": {"title": "Drawn", "content": "words that a script drew", "url": "x"}}
        return web.Response(status=status, text=json.dumps(drawn) if body is None else body)

    application = web.Application()
    application.router.add_get("/{path:.*}", read)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def test_a_page_without_text_is_read_by_the_service_and_refused_targets_are_never_told_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JINA_API_KEY", "key-of-the-reader")

    async def main() -> None:
        async with (
            service() as (base, asked),
            site(tmp_path) as pages,
            fetching("--allow", pages.root[7:], "--jina-url", base) as call,
        ):
            urls = [f"{pages.root}/{path}" for path in ("drawn", "busy", "page", "gone")]
            drawn, busy, page, gone, inner = results(await call(url=[*urls, "http://10.0.0.1/"]))
        assert (drawn["title"], drawn["text"], drawn["source"]) == ("Drawn", "words that a script drew", "127.0.0.1")
        assert busy["source"] == "127.0.0.1"
        assert page["source"] == "direct"
        assert "404" in gone["error"]
        assert "refused (private)" in inner["error"]
        assert sorted(asked) == sorted((url, "Bearer key-of-the-reader") for url in urls[:2])

    asyncio.run(main())


def test_a_service_that_fails_costs_nothing_that_was_read_and_no_error_shows_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JINA_API_KEY", "key-of-the-reader")

    async def main() -> None:
        for status, body, said in ((401, "key-of-the-reader", "HTTP 401"), (200, "[]", "something else than a page")):
            async with (
                service(status, body) as (base, _),
                site(tmp_path) as pages,
                fetching("--allow", pages.root[7:], "--jina-url", base) as call,
            ):
                answer = await call(url=[f"{pages.root}/drawn", f"{pages.root}/busy"])
            drawn, busy = results(answer)
            assert drawn["title"] == "App"
            assert said in drawn["notes"][-1]
            assert "HTTP 503" in busy["error"]
            assert said in busy["error"]
            assert "key-of-the-reader" not in answer.text

    asyncio.run(main())


def test_without_a_service_a_page_without_text_says_that_a_script_draws_it(tmp_path: Path) -> None:
    async def scene(pages: Site, call: Call) -> None:
        assert "it may be drawn by a script" in (await call(url=f"{pages.root}/drawn")).text

    play(tmp_path, scene)


def test_what_was_read_is_forgotten_by_age_and_by_size() -> None:
    now = [0.0]
    recent: Recent[str] = Recent(keep_seconds=10, max_size=10, size_of=len, clock=lambda: now[0])
    recent.put("a", "aaaa")
    recent.put("b", "bbbb")
    assert recent.get("a") == "aaaa"
    recent.put("c", "cccc")
    assert (recent.get("a"), recent.get("b"), recent.get("c")) == ("aaaa", None, "cccc")
    now[0] = 10
    assert recent.get("a") is None
    recent.put("large", "x" * 11)
    assert recent.get("large") is None


def test_the_schema_takes_its_own_examples_and_nothing_else() -> None:
    parameters = fetch_url.build([])[0].as_served().parameters
    jsonschema.Draft202012Validator.check_schema(parameters)
    for example in parameters["examples"]:
        jsonschema.validate(example, parameters)
        assert argument_problem(parameters, example) == ""
    for wrong in (
        {},
        {"url": []},
        {"url": ["a"] * 9},
        {"url": [1]},
        {"url": ["a"], "limit": 0},
        {"url": ["a"], "x": 1},
    ):
        assert argument_problem(parameters, wrong)


@pytest.mark.parametrize("options", [["--allow", "intranet"], ["--jina-url", "r.test"]])
def test_options_that_mean_nothing_are_named(options: list[str]) -> None:
    with pytest.raises(ValueError, match=options[1]):
        fetch_url.build(options)


def test_the_server_answers_through_mcp_with_a_string_for_the_list(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            site(tmp_path) as pages,
            Supervisor([builtin_server("fetch_url", "--allow", pages.root[7:])]) as supervisor,
        ):
            assert await supervisor.start() == {}
            arguments = {"url": f"{pages.root}/words", "limit": 20}
            outcome = await supervisor.call("fetch_url", "fetch_url", arguments, timeout_seconds=10)
        assert "word0 word1" in outcome.text
        assert not outcome.is_error

    asyncio.run(main())
