"""The command ``agentdock`` as users run it: up, found by programs of the same user, and down without orphans."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

ODD = Path(__file__).resolve().parent.parent / "tools_servers" / "odd.py"


def configured(tmp_path: Path, **servers: dict) -> str:
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}))
    return str(path)


GOOD = {"command": sys.executable, "args": ["-S", str(ODD)]}


def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "AGENTDOCK_TOKEN"}
    return kept | {"XDG_STATE_HOME": str(tmp_path / "user")}


def test_up_announces_itself_serves_and_leaves_nothing_behind(tmp_path: Path) -> None:
    state = tmp_path / "state"
    command = [sys.executable, "-m", "agentdock", "up", configured(tmp_path, good=GOOD), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--state-dir", str(state)], env=environment(tmp_path), stdout=subprocess.PIPE, text=True
    )
    try:
        found = state / "gateway.json"
        deadline = time.monotonic() + 60
        while not found.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        gateway = json.loads(found.read_text())
        token = Path(gateway["token_file"]).read_text().strip()
        wanted = urllib.request.Request(gateway["url"] + "/v1/servers", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(wanted) as answer:
            (server,) = json.load(answer)["servers"]
        assert server["state"] == "ready"
        process.send_signal(signal.SIGTERM)
        output = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    assert process.returncode == 0
    assert gateway["url"] in output
    assert str(state / "token") in output
    assert token not in output
    assert not found.exists()
    assert not Path(f"/proc/{server['pid']}").exists()


def test_check_lists_tools_and_names_what_is_broken(tmp_path: Path) -> None:
    config = configured(tmp_path, good=GOOD, bad={"command": "no-such-command"})
    command = [sys.executable, "-m", "agentdock", "check"]
    done = subprocess.run([*command, config], env=environment(tmp_path), capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "good.echo" in done.stdout
    assert "bad: failed" in done.stdout
    assert "no-such-command" in done.stdout
    none = subprocess.run(
        [*command, "none.toml"], env=environment(tmp_path), capture_output=True, text=True, timeout=60
    )
    assert (none.returncode, "none.toml: cannot be read" in none.stderr) == (2, True)


def test_up_follows_its_configuration_and_names_the_line_of_a_mistake(tmp_path: Path) -> None:
    state, file = tmp_path / "state", tmp_path / "dock.toml"
    entry = f'[server.NAME]\ncommand = "{sys.executable}"\nargs = ["-S", "{ODD}", "--tools", "echo"]\n'
    file.write_text(entry.replace("NAME", "first"))
    command = [sys.executable, "-m", "agentdock", "up", str(file), "--port", "0", "--state-dir", str(state)]
    process = subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None

    def printed(text: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if text in line:
                return
        raise AssertionError(f"{text!r} was not printed")

    def tools() -> set[str]:
        gateway = json.loads((state / "gateway.json").read_text())
        token = Path(gateway["token_file"]).read_text().strip()
        wanted = urllib.request.Request(gateway["url"] + "/mcpapi/tools", headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(wanted) as answer:
            return {tool["function"]["name"] for tool in json.load(answer)["tools"]}

    try:
        printed("gateway http")
        while not (state / "gateway.json").exists():
            time.sleep(0.02)
        assert tools() == {"first.echo"}
        file.write_text(entry.replace("NAME", "first") + entry.replace("NAME", "second"))
        printed("was read again: added second")
        assert tools() == {"first.echo", "second.echo"}
        file.write_text(entry.replace("NAME", "third") + "comand = 1\n")
        printed("has mistakes and is not used")
        printed("dock.toml:4: server.third.comand: is not known here; did you mean 'command'?")
        assert tools() == {"first.echo", "second.echo"}
        file.write_text(entry.replace("NAME", "second"))
        printed("was read again: removed first")
        assert tools() == {"second.echo"}
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.stdout.close()
