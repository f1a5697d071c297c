"""`examples/search_agent` as it is shipped: questions are answered by search, then fetch_url, on real pages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pages import ROOT

from agentdock.config import load_config

pytestmark = [pytest.mark.ci, pytest.mark.timeout(180)]

EXAMPLE = ROOT / "examples" / "search_agent"


@dataclass(slots=True)
class Site:
    port: int
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    asked: list[str] = []

    class Pages(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(EXAMPLE / "site")))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Site(server.server_address[1], asked)
    server.shutdown()
    thread.join()
    server.server_close()


def test_questions_are_answered_by_searching_and_reading(site: Site, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{site.port}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "agentrl", "eval", "--config", "examples/search_agent/eval.yaml"),
            f"--output_dir={tmp_path}",
            "--mcp_manager_url",
            f"builtin:search-fusion --corpus examples/search_agent/site --corpus-url {url}",
            f"builtin:fetch_url --allow 127.0.0.1:{site.port}",
        ],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(EXAMPLE), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "search-agent" / "results.json").read_text())
    assert results["outcomes"] == {"answered": 12}
    answers = {record["id"].split("/")[3]: (record["answer"], record["score"]) for record in results["records"]}
    assert answers["capitals"] == (
        "Four capitals stand on its banks: Vienna, Bratislava, Budapest and Belgrade.",
        1.0,
    )
    assert answers["two-steps-sea"][1] == 0.0, "one step answers a question that takes two"
    assert {"/danube.html", "/volga.html", "/lake-titicaca.html"} <= set(site.asked)


def test_the_configuration_of_the_dock_names_the_same_servers() -> None:
    search, fetch = load_config(EXAMPLE / "tools.toml").servers
    lines = (EXAMPLE / "eval.yaml").read_text().splitlines()
    for server in (search, fetch):
        assert f"  - builtin:{server.name} {' '.join(server.args[2:])}" in lines
