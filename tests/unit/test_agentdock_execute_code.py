"""``execute_code`` as a tool: its arguments, options, files and images, through the door of a real server."""

import asyncio
import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from agentdock.calls import CallOutcome
from agentdock.sandbox import quantities
from agentdock.sandbox.tiers import TIERS
from agentdock.servers import python
from agentdock.servers.serve import Answer, argument_problem, coerced
from agentdock.spec import builtin_server
from agentdock.supervisor import Supervisor

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the limits are those of Linux")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def tool(*options: str) -> python.CodeTool:
    return python.build(options)[0]


def run(code: str, *options: str, **arguments: Any) -> Answer:
    return asyncio.run(tool(*options).execute({"code": code, **arguments}))


def parts(answer: Answer) -> dict[str, Any]:
    assert answer.structured is not None
    return answer.structured


def ends_at(code: str, *options: str) -> str:
    """Which limit ended the code, or the last line of its error."""
    structured = parts(run(code, *options))
    return structured["stopped"] or structured["stderr"].splitlines()[-1]


def test_the_examples_of_the_schema_are_valid_and_run() -> None:
    served = tool().as_served()
    for example in served.parameters["examples"]:
        jsonschema.validate(example, served.parameters)
        assert not asyncio.run(served.run(example)).is_error
    jsonschema.Draft202012Validator.check_schema(served.parameters)


@pytest.mark.parametrize("arguments", [{"filename": "../../x"}, {"path": "x"}, {"files": ["x"]}, {"session": "s"}])
def test_an_argument_that_is_not_in_the_schema_is_refused_by_name(arguments: dict[str, Any]) -> None:
    schema = tool().as_served().parameters
    assert f"there is no argument '{next(iter(arguments))}'" in argument_problem(schema, {"code": "1", **arguments})
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"code": "1", **arguments}, schema)


def test_every_part_of_the_result_is_structured() -> None:
    answer = run("import sys; print('out'); print('warned', file=sys.stderr); sys.exit(1)")
    assert answer.text == "out\n[stderr]\nwarned\n[exit code 1]"
    assert answer.is_error
    structured = parts(answer)
    assert (structured["stdout"], structured["stderr"], structured["exit_code"]) == ("out\n", "warned\n", 1)
    assert structured["tier"] in TIERS
    assert structured["seconds"] > 0
    assert structured["truncated"] is False
    assert structured["files"] == []


def test_a_call_may_ask_for_less_time_but_not_for_more() -> None:
    assert parts(run("import time; time.sleep(60)", timeout=0.3))["stopped"] == "wall time limit of 0.3 s"
    problem = argument_problem(tool("--wall", "5s").as_served().parameters, {"code": "1", "timeout": 6})
    assert problem == "argument 'timeout' must be at most 5.0, not 6"


def test_files_are_listed_and_small_ones_are_returned() -> None:
    answer = run(
        "import os\nos.mkdir('d')\nopen('d/small.csv', 'w').write('a,b')\nopen('big', 'wb').write(bytes(100_000))"
    )
    assert answer.text.endswith("[files] big (100000 bytes), d/small.csv (3 bytes)")
    big, small = parts(answer)["files"]
    assert big == {"name": "big", "bytes": 100_000, "media_type": "application/octet-stream", "base64": None}
    assert small["media_type"] == "text/csv"
    assert base64.b64decode(small["base64"]) == b"a,b"


def test_images_are_shown_and_only_what_is_one_counts() -> None:
    answer = run(
        f"import base64\nopen('a.png', 'wb').write(base64.b64decode('{PIXEL}'))\nopen('b.png', 'w').write('text')"
    )
    assert [(picture.media_type, picture.base64) for picture in answer.pictures] == [("image/png", PIXEL)]
    assert [file["media_type"] for file in parts(answer)["files"]] == ["image/png", "image/png"]
    many = run(f"import base64\nfor i in range(10): open(f'{{i}}.png', 'wb').write(base64.b64decode('{PIXEL}'))")
    assert len(many.pictures) == 8
    assert "[the first 8 of 10 images are shown]" in many.text


def test_open_figures_become_images() -> None:
    """matplotlib itself is not needed: what is asked of it is the list of open figures and their ``savefig``."""
    fake = f"""
import base64, sys, types
class Figure:
    def savefig(self, name):
        open(name, "wb").write(base64.b64decode("{PIXEL}"))
pyplot = types.ModuleType("matplotlib.pyplot")
pyplot.get_fignums = lambda: [1, 2]
pyplot.figure = lambda number: Figure()
pyplot.close = lambda what: None
sys.modules["matplotlib.pyplot"] = pyplot
"""
    answer = run(fake)
    assert [file["name"] for file in parts(answer)["files"]] == ["figure-1.png", "figure-2.png"]
    assert len(answer.pictures) == 2


def test_a_link_to_a_file_outside_is_not_returned(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("k")
    code = f"import os\nos.symlink('{tmp_path}/secret', 'link')\nos.symlink('{tmp_path}', 'folder')\nos.mkfifo('pipe')"
    assert parts(run(code))["files"] == []


def test_named_files_are_copied_in_and_others_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside" / "d").mkdir(parents=True)
    (tmp_path / "inside" / "d" / "numbers.csv").write_text("1,2,3")
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "inside" / "link").symlink_to(tmp_path / "outside.txt")
    root = ("--root", str(tmp_path / "inside"))
    assert run("print(open('numbers.csv').read())", *root, files=["d/numbers.csv"]).text == "1,2,3"
    for name in ("../outside.txt", str(tmp_path / "outside.txt"), "link", "/etc/shadow"):
        assert "outside of the folders" in run("1", *root, files=[name]).text
    assert "there is no file x" in run("1", *root, files=["x"]).text
    assert "already a file" in run("1", *root, files=["d/numbers.csv", "d/numbers.csv"]).text
    served = tool(*root).as_served()
    assert coerced(served.parameters, {"code": "1", "files": "d/numbers.csv"})["files"] == ["d/numbers.csv"]


@pytest.mark.parametrize(
    "name",
    ["inside/../../outside.txt", "a\0b", "", ".", "..", "//etc/passwd", "file:///etc/passwd", "~/x", "d", "loop"],
)
def test_no_spelling_of_a_path_leads_out_of_the_folders(name: str, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    root = tmp_path / "inside"
    (root / "d").mkdir(parents=True)
    answer = run("import os; print(os.listdir())", "--root", str(root), files=[name])
    assert answer.is_error
    assert answer.structured is None, answer.text
    assert "secret" not in answer.text


def test_a_file_with_the_name_of_the_program_is_refused_and_not_lost(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text("print('other')")
    answer = run("print('mine')", "--root", str(tmp_path), files=["main.py"])
    assert answer.is_error
    assert "main.py is the name of the program itself" in answer.text


def test_names_that_the_code_makes_stay_plain_paths_below_its_folder(tmp_path: Path) -> None:
    code = f"""
import os
open('main.py', 'w').write('changed')
os.link('main.py', 'hard')
os.mkdir('d')
open('d/..x', 'w').write('plain')
os.symlink('{tmp_path}', 'd/out')
try:
    open('../escaped-by-sandbox', 'w')
except OSError:
    print('refused')
"""
    structured = parts(run(code))
    assert structured["stdout"] == "refused\n"
    names = [file["name"] for file in structured["files"]]
    assert names == ["d/..x", "hard"]


def test_a_served_call_with_an_extra_argument_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    async def play() -> list[CallOutcome]:
        async with Supervisor([builtin_server("python")]) as supervisor:
            assert await supervisor.start() == {}
            extras = ({"filename": "../../x"}, {"session": "s"}, {"files": ["/etc/passwd"]})
            return [
                await supervisor.call("python", "execute_code", {"code": "print('ran')", **extra}, timeout_seconds=30)
                for extra in extras
            ]

    for outcome, name in zip(asyncio.run(play()), ("filename", "session", "files"), strict=True):
        assert outcome.is_error
        assert f"'{name}'" in outcome.text
        assert "ran" not in outcome.text


def test_each_limit_on_the_command_line_has_its_effect() -> None:
    assert ends_at("import time; time.sleep(60)", "--wall", "300ms") == "wall time limit of 0.3 s"
    assert ends_at("while True: pass", "--cpu", "1s") == "CPU time limit of 1 s"
    assert ends_at("bytearray(300 * 1024**2)", "--memory", "256MiB") == "MemoryError"
    assert "BlockingIOError" in ends_at("import os, time\nwhile os.fork(): pass\ntime.sleep(9)", "--pids", "8")
    assert "File too large" in ends_at(
        "open('f', 'wb', 0).write(bytes(2000)) and open('f', 'ab', 0).write(b'x')", "--file-size", "1KiB"
    )
    many = "import time\nfor i in range(9): open(f'f{i}', 'wb').write(bytes(10**6))\ntime.sleep(9)"
    assert ends_at(many, "--disk", "4MiB") == "limit of 4 MiB in the working folder"
    assert "Too many open files" in ends_at("[open('main.py') for _ in range(99)]", "--open-files", "32")
    assert parts(run("print('x' * 5000)", "--output", "1KiB"))["truncated"] is True


def test_the_network_is_refused_unless_it_is_asked_for() -> None:
    code = "import socket\nsocket.socket(socket.AF_INET)\nprint('open')"
    assert "PermissionError" in run(code).text
    assert run(code, "--network").text == "open"
    assert tool("--network").as_served().as_mcp().annotations.open_world_hint  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--wall", "fast"), "'fast' is no quantity above zero with one of the units ms, s, min, h"),
        (("--memory", "2GB"), "'2GB' is no quantity above zero with one of the units B, KiB, MiB, GiB"),
        (("--pids", "0"), "'0' is no whole number above zero"),
        (("--root", "/nowhere"), "/nowhere is not a folder that can be read"),
        (("--min-tier", "container"), "container: no container image is named (--image)"),
    ],
)
def test_a_wrong_option_stops_the_server_before_it_serves(options: tuple[str, ...], problem: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agentdock.servers.python", *options],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert problem in done.stderr


def test_quantities_are_read_and_written_in_units() -> None:
    assert [quantities.seconds(text) for text in ("2", "1.5", "60s", "2min", "250ms")] == [2, 1.5, 60, 120, 0.25]
    assert [quantities.num_bytes(text) for text in ("7", "256KiB", "1.5MiB", "2GiB")] == [7, 2**18, 3 * 2**19, 2**31]
    assert [quantities.written(size) for size in (7, 2**18, 3 * 2**19)] == ["7 B", "256 KiB", "1536 KiB"]


def test_the_server_is_called_python_and_its_images_arrive_as_images() -> None:
    async def play() -> CallOutcome:
        async with Supervisor([builtin_server("python", "--wall", "20s")]) as supervisor:
            assert await supervisor.start() == {}
            code = f"import base64\nopen('a.png', 'wb').write(base64.b64decode('{PIXEL}'))\nprint('drawn')"
            return await supervisor.call("python", "execute_code", {"code": code}, timeout_seconds=30)

    outcome = asyncio.run(play())
    assert [block["type"] for block in outcome.content] == ["text", "image"]
    assert outcome.content[1]["data"] == PIXEL
    assert outcome.structured["files"][0]["name"] == "a.png"
    assert json.dumps(outcome.structured)
