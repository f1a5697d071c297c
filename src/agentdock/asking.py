"""Commands that ask a running gateway: ``call``, ``tools``, ``logs`` and ``token``. Standard library only."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from agentdock.discovery import (
    GATEWAY_FILE,
    TOKEN_FILE,
    TOKEN_VARIABLE,
    RunningGateway,
    TokenProblem,
    is_alive,
    read_gateway,
    read_token,
    user_state_dir,
    write_private,
)
from agentdock.logs import log_name

FOLLOW_SECONDS = 0.2
TAIL_BYTES = 64 * 1024


class CannotAsk(Exception):
    """There is no gateway to ask, or it did not answer as one; the text says what to do."""


def ask(args: Namespace) -> int:
    """Run the command of ``args``; return 0, or 1 if the gateway answered with an error."""
    state_dir = (args.state_dir or user_state_dir()).resolve()
    match args.command:
        case "token":
            return _token(args.action, state_dir)
        case "logs":
            return _logs(args, state_dir)
        case "tools":
            path = f"/p/{quote(args.profile, safe='')}/tools?{urlencode({'format': args.format})}"
            return _show(*_request(_running(state_dir), "GET", path))
        case _:
            path = f"/p/{quote(args.profile, safe='')}/tool/{quote(args.tool, safe='')}"
            return _show(*_request(_running(state_dir), "POST", path, _object(args.arguments)))


def _running(state_dir: Path) -> RunningGateway:
    place = state_dir / GATEWAY_FILE
    gateway = read_gateway(place)
    if gateway is None or not is_alive(gateway.pid):
        raise CannotAsk(f"no gateway runs ({place} names none); start one with: agentdock up [CONFIG]")
    return gateway


def _object(text: str) -> bytes:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CannotAsk(f"the arguments are not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CannotAsk('the arguments are not a JSON object such as {"query": ["a"]}')
    return text.encode("utf-8", "surrogatepass")


def _request(gateway: RunningGateway, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of the answer. Nothing but the gateway sees the token, so no proxy is used."""
    token = read_token(Path(gateway.token_file)) if gateway.token_file else os.environ.get(TOKEN_VARIABLE, "")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(gateway.url + path, data=body, headers=headers, method=method)
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read() or b"{}")
    except OSError as error:
        raise CannotAsk(f"the gateway at {gateway.url} does not answer: {error}") from None


def _show(status: int, answer: Any) -> int:
    if status >= 400:
        content = answer["content"]
        print(f"agentdock: {content['code']}: {content['error']}", file=sys.stderr)
        return 1
    content = answer.get("tools", answer.get("content"))
    print(content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=2))
    return 0


def _logs(args: Namespace, state_dir: Path) -> int:
    folder = state_dir / "logs"
    path = folder / log_name(args.server)
    if not path.is_file():
        known = ", ".join(sorted(file.name.removesuffix(".log") for file in folder.glob("*.log"))) or "none"
        raise CannotAsk(f"{path} does not exist: that server wrote nothing, or has another name; there are {known}")
    place = max(0, path.stat().st_size - TAIL_BYTES)
    while True:
        place = _print_from(path, place)
        if not args.follow:
            return 0
        time.sleep(FOLLOW_SECONDS)


def _print_from(path: Path, place: int) -> int:
    """Print what ``path`` holds behind ``place``, or all of it if it was begun anew; return where it ends."""
    with path.open("rb") as file:
        file.seek(place if place <= path.stat().st_size else 0)
        print(file.read().decode("utf-8", "replace"), end="", flush=True)
        return file.tell()


def _token(action: str, state_dir: Path) -> int:
    if os.environ.get(TOKEN_VARIABLE):
        raise CannotAsk(f"the token is that of {TOKEN_VARIABLE}, which only you can change")
    gateway = read_gateway(state_dir / GATEWAY_FILE)
    path = Path(gateway.token_file) if gateway and gateway.token_file else state_dir / TOKEN_FILE
    if action == "rotate":
        if gateway is not None and is_alive(gateway.pid):
            raise CannotAsk(f"the gateway at {gateway.url} would not know a new token; end it, then rotate")
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(path, secrets.token_urlsafe(32) + "\n")
        print(f"a new token is in {path}")
        return 0
    try:
        print(read_token(path))
    except OSError as error:
        raise TokenProblem(f"token file {path}: {error.strerror}; a gateway writes it at its first start") from None
    return 0
