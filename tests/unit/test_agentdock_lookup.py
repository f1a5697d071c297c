"""The lookup server's index: ranking, languages and corpus errors."""

from pathlib import Path

import pytest

from agentdock.searching.bm25 import Index
from agentdock.searching.corpus import CorpusProblem, Document, load_corpus
from agentdock.servers.lookup import DEFAULT_CORPUS


def test_the_shipped_corpus_answers_questions() -> None:
    index = Index(load_corpus(DEFAULT_CORPUS))
    best = {
        "moon discovered by Huygens": "Titan",
        "Which element has atomic number 79?": "Gold",
        "capital of Australia": "Canberra",
        "奥运会": "北京",
    }
    assert {query: index.search(query, 1)[0].title for query in best} == best


def test_rare_words_weigh_more_and_ties_keep_corpus_order() -> None:
    texts = ["common rare", "common common common", "common word", "common word"]
    documents = [Document(title=str(i), text=text) for i, text in enumerate(texts)]
    index = Index(documents)
    assert index.search("common rare", 4)[0].title == "0"
    assert [hit.title for hit in index.search("word", 9)] == ["2", "3"]
    assert index.search("absent", 3) == []
    assert index.search("", 3) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "has no documents"),
        ('{"title": "a", "text": "b"}\n{', "line 2: not valid JSON"),
        ('\n{"title": "a"}', "line 2: expected an object with a text field 'text'"),
        ('{"title": 1, "text": "b"}', "line 1: 'title' is int"),
    ],
)
def test_a_bad_corpus_is_refused_by_file_and_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(text)
    with pytest.raises(CorpusProblem) as error:
        load_corpus(path)
    assert str(path) in str(error.value)
    assert problem in str(error.value)
