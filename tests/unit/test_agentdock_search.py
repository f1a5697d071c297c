"""The server ``search-fusion`` and the engine ``local``: corpora, ranking, passages, answers, failover."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import jsonschema
import pytest

from agentdock.arguments import fit
from agentdock.entries import BUILTIN_ALIASES
from agentdock.searching.corpus import CorpusProblem, read_corpus
from agentdock.searching.engines import Wanted, chosen_engines
from agentdock.searching.fusion import Fusion
from agentdock.searching.hits import EngineFailed, Hit, one_line
from agentdock.searching.local import LocalEngine, passage
from agentdock.servers import search_fusion
from agentdock.servers.serve import Answer
from agentdock.spec import builtin_server
from agentdock.supervisor import Supervisor

PAGES = {
    "bridges.html": "<html><head><title>Bridges</title><style>x{}</style></head><body><p>The Forth Bridge opened in"
    " 1890.</p><p>It is a cantilever railway bridge in Scotland.</p></body></html>",
    "rivers/danube.md": "# The Danube\n\nThe Danube flows through ten countries.\n\nIt ends in the Black Sea.\n",
    "notes.txt": "Nothing to see about water.\n",
    "table.bin": "\0\1",
    ".hidden.txt": "The Danube is hidden here.",
}


class Recorded:
    """An engine that answers or fails as it was told, and counts how often it was asked."""

    def __init__(self, name: str, *, failure: EngineFailed | None = None, num_hits: int = 1) -> None:
        self.name = name
        self.failure = failure
        self.num_hits = num_hits
        self.asked = 0
        self.closed = False

    async def search(self, query: str, num: int) -> Sequence[Hit]:
        self.asked += 1
        if self.failure:
            raise self.failure
        return [
            Hit(rank=rank, title=query, url="", snippet="", engine=self.name) for rank in range(1, self.num_hits + 1)
        ]

    async def close(self) -> None:
        self.closed = True


def folder(tmp_path: Path) -> Path:
    root = tmp_path / "texts"
    for name, text in PAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def answer(arguments: Sequence[str], **call: object) -> Answer:
    tool, _ = search_fusion.build(arguments, {})
    return asyncio.run(tool.search(call))


def test_a_folder_is_read_with_titles_and_urls_and_says_what_it_left_out(tmp_path: Path) -> None:
    corpus = read_corpus(folder(tmp_path), base_url="http://127.0.0.1:8080/site")
    assert [(doc.title, doc.url) for doc in corpus.documents] == [
        ("Bridges", "http://127.0.0.1:8080/site/bridges.html"),
        ("notes", "http://127.0.0.1:8080/site/notes.txt"),
        ("The Danube", "http://127.0.0.1:8080/site/rivers/danube.md"),
    ]
    assert corpus.left_out == ("table.bin",)
    assert read_corpus(folder(tmp_path)).documents[2].url == "rivers/danube.md"


def test_urls_of_a_jsonl_corpus_are_kept_and_relative_ones_joined(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    rows = [{"title": "A", "text": "a", "url": "https://a.test/x"}, {"title": "B", "text": "b", "url": "b.html"}]
    path.write_text("\n".join(map(json.dumps, [*rows, {"text": "c"}])))
    urls = [doc.url for doc in read_corpus(path, base_url="http://h:1/").documents]
    assert urls == ["https://a.test/x", "http://h:1/b.html", ""]


def test_a_folder_without_texts_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorpusProblem, match=r"has no documents; expected files that end in .*\.md"):
        read_corpus(tmp_path)


def test_a_snippet_is_the_passage_that_answers_best(tmp_path: Path) -> None:
    filler = "This sentence speaks of something else entirely and goes on. " * 30
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"title": "T", "text": f"{filler}The tower is 330 metres high. {filler}"}))
    hits = asyncio.run(LocalEngine(read_corpus(path), snippet_characters=80).search("how high is the tower", 1))
    assert "The tower is 330 metres high." in hits[0].snippet
    assert len(hits[0].snippet) <= 84
    assert passage("First. Second.", {}, limit=8) == "First."
    assert passage("", {"a": 1.0}, limit=8) == ""


def test_long_lines_are_cut_at_a_blank() -> None:
    assert one_line("one two\nthree", 50) == "one two three"
    assert one_line("one two three", 9) == "one two ..."
    assert one_line("x" * 20, 5) == "xxxxx ..."


def test_hits_come_as_fields_and_as_compact_text(tmp_path: Path) -> None:
    given = answer(["--corpus", str(folder(tmp_path)), "--corpus-url", "http://h:1"], query=["Danube countries"], num=1)
    url = "http://h:1/rivers/danube.md"
    snippet = "# The Danube The Danube flows through ten countries. It ends in the Black Sea."
    hit = {"rank": 1, "title": "The Danube", "url": url, "snippet": snippet, "engine": "local"}
    assert given.structured == {
        "results": [{"query": "Danube countries", "engine": "local", "hits": [hit], "passed_over": []}]
    }
    assert given.text == f"local results for 'Danube countries':\n1. The Danube\n   {url}\n   {snippet}"
    assert not given.is_error


def test_each_query_of_a_call_is_answered_and_fails_alone(tmp_path: Path) -> None:
    given = answer(["--corpus", str(folder(tmp_path))], query=["bridge", " ", "zebra", "bridge"])
    assert given.structured
    results = given.structured["results"]
    assert [result["query"] for result in results] == ["bridge", " ", "zebra"]
    assert results[0]["hits"][0]["title"] == "Bridges"
    assert results[1]["error"] == "the query is empty; give words to look for"
    assert results[2]["hits"] == []
    assert "local has no results for 'zebra'. Try other or fewer words." in given.text
    assert not given.is_error
    assert answer(["--corpus", str(folder(tmp_path))], query=[""]).is_error


def test_the_same_query_gives_the_same_hits_from_a_copy_of_the_folder(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "a"), folder(tmp_path / "b")
    for root, names in ((first, "abc"), (second, "cba")):
        for name in names:
            (root / f"{name}.txt").write_text("the same words about bridges")
    texts = {answer(["--corpus", str(root)], query=["bridges water Danube"], num=9).text for root in (first, second)}
    assert len(texts) == 1


def test_the_examples_fit_the_schema_and_slips_are_put_right(tmp_path: Path) -> None:
    tool, _ = search_fusion.build(["--corpus", str(folder(tmp_path))], {})
    served = tool.as_served()
    for example in served.parameters["examples"]:
        jsonschema.validate(example, served.parameters)
    assert not served.open_world
    fixed = fit({"query": "one", "num": "3"}, served.parameters)
    assert fixed.arguments == {"query": ["one"], "num": 3}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "no engine to search with: give --corpus"),
        (["--engine", "local"], "--engine local: needs --corpus"),
        (["--engine", "altavista"], "--engine altavista: there is no such engine; there are local"),
    ],
)
def test_what_cannot_search_is_refused_before_it_is_served(arguments: list[str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        search_fusion.build(arguments, {})


def test_a_failure_goes_on_to_the_next_engine_and_an_empty_answer_does_not() -> None:
    async def main() -> None:
        broken = Recorded("a", failure=EngineFailed("a is broken", retryable=True))
        empty, third = Recorded("b", num_hits=0), Recorded("c")
        fusion = Fusion([broken, empty, third])
        found = await fusion.search("x", 3)
        assert (found.engine, found.hits, found.passed_over) == ("b", (), ("a is broken",))
        with pytest.raises(EngineFailed, match="a is broken"):
            await fusion.search("x", 3, engine="a")
        assert third.asked == 0
        assert (await fusion.search("x", 3, engine="c")).engine == "c"
        await fusion.close()
        assert broken.closed
        assert third.closed

    asyncio.run(main())


def test_an_engine_that_asked_for_rest_is_left_alone_as_long_as_it_said() -> None:
    async def main() -> None:
        now = [100.0]
        busy = Recorded("a", failure=EngineFailed("a is busy", retryable=True, rest_seconds=30.0))
        fusion = Fusion([busy], clock=lambda: now[0])
        with pytest.raises(EngineFailed, match="a is busy"):
            await fusion.search("x", 3)
        now[0] = 110.5
        with pytest.raises(EngineFailed, match="a is not asked for another 20 s") as refused:
            await fusion.search("x", 3)
        assert refused.value.retryable
        assert busy.asked == 1
        now[0] = 130.5
        busy.failure = None
        assert (await fusion.search("x", 3)).engine == "a"

    asyncio.run(main())


def test_the_reference_names_reach_search_and_fetch_url() -> None:
    assert set(BUILTIN_ALIASES["search-fusion"]) >= {"web", "search_web"}
    assert set(BUILTIN_ALIASES["fetch_url"]) >= {"web", "search_web", "search-fusion"}


def test_local_alone_is_chosen_for_a_corpus_even_where_keys_are_set(tmp_path: Path) -> None:
    assert [engine.name for engine in chosen_engines(Wanted(corpus=folder(tmp_path)), {"SERPER_API_KEY": "k"})] == [
        "local"
    ]


def test_the_server_answers_through_mcp_with_a_text_for_the_list(tmp_path: Path) -> None:
    async def main() -> None:
        server = builtin_server("search-fusion", "--corpus", str(folder(tmp_path)))
        async with Supervisor([server]) as supervisor:
            assert await supervisor.start() == {}
            outcome = await supervisor.call("search-fusion", "search", {"query": "Danube"}, timeout_seconds=10)
        assert "The Danube flows through ten countries" in outcome.text
        assert not outcome.is_error

    asyncio.run(main())


def test_a_server_without_a_corpus_says_why_it_did_not_start() -> None:
    async def main() -> None:
        async with Supervisor([builtin_server("search-fusion")]) as supervisor:
            problems = await supervisor.start()
        assert "--corpus" in problems["search-fusion"]

    asyncio.run(main())
