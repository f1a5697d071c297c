"""The tools of sdk.py over HTTP, as a process of its own: remote.py PORT [--sse] [--legacy] [--key KEY] [--log FILE]

``--legacy`` hides the protocol of 2026, so that there are sessions. ``--key`` is asked for in the header X-Key. The log
gets a line for each method, and "cancelled" when the tool ``hang`` is given up.
"""

import argparse
import asyncio
import json
import sys
from pathlib import Path

import uvicorn

sys.path.insert(0, str(Path(__file__).parent))
from sdk import server

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("port", type=int)
OPTIONS.add_argument("--sse", action="store_true")
OPTIONS.add_argument("--legacy", action="store_true")
OPTIONS.add_argument("--key", default="")
OPTIONS.add_argument("--log", default="")
OPTS = OPTIONS.parse_args()
TOO_OLD = {"code": -32601, "message": "unknown method server/discover"}


def note(line: str) -> None:
    if OPTS.log:
        with open(OPTS.log, "a") as file:
            file.write(line + "\n")


@server.tool()
async def wait(text: str = "") -> str:
    """Never ends by itself."""
    note("waiting")
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    return text


class Front:
    """Looks at each request before the SDK does."""

    def __init__(self, app) -> None:
        self.app = app

    async def __call__(self, scope, receive, send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if OPTS.key and dict(scope["headers"]).get(b"x-key", b"").decode() != OPTS.key:
            await answer(send, 401, b"no entry")
            return
        if scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        request = json.loads(body)
        note(request.get("method", "answer"))
        if OPTS.legacy and request.get("method") == "server/discover":
            error = {"jsonrpc": "2.0", "id": request["id"], "error": TOO_OLD}
            await answer(send, 400, json.dumps(error).encode(), b"application/json")
            return
        parts = [{"type": "http.request", "body": body, "more_body": False}]
        await self.app(scope, lambda: first(parts, receive), send)


async def first(parts, receive):
    return parts.pop() if parts else await receive()


async def answer(send, status: int, body: bytes, kind: bytes = b"text/plain") -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    app = server.sse_app() if OPTS.sse else server.streamable_http_app()
    uvicorn.run(Front(app), host="127.0.0.1", port=OPTS.port, log_level="error", timeout_graceful_shutdown=1)
