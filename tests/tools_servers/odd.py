"""A real stdio server of the 2025 protocol, without any SDK, that misbehaves on request.

Options: --tools a,b,...  --pages N  --repeat-cursor  --die-at-start TEXT  --silent  --starts FILE  --calls FILE
         --die-while FILE (is there)  --start-seconds S  --say-env NAME
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

OPTIONS = argparse.ArgumentParser()
OPTIONS.add_argument("--tools", default="echo,fail,hang,slow,big,die,env,child,deaf,garbage")
OPTIONS.add_argument("--idempotent", default="")
OPTIONS.add_argument("--pages", type=int, default=1)
OPTIONS.add_argument("--repeat-cursor", action="store_true")
OPTIONS.add_argument("--die-at-start", default="")
OPTIONS.add_argument("--die-from-start", type=int, default=0)
OPTIONS.add_argument("--die-while", default="")
OPTIONS.add_argument("--say-env", default="")
OPTIONS.add_argument("--start-seconds", type=float, default=0)
OPTIONS.add_argument("--silent", action="store_true")
OPTIONS.add_argument("--starts", default="")
OPTIONS.add_argument("--calls", default="")
OPTS = OPTIONS.parse_args()
LOCK = threading.Lock()
SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}}
RICH = {
    "title": "A rich tool",
    "outputSchema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    "annotations": {"title": "Rich", "readOnlyHint": True},
    "_meta": {"odd/colour": "green"},
}
# One red pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
LIST_SCHEMA = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "integer"}}}}


def note(path: str, line: str) -> int:
    """Append ``line`` and return how many lines there are."""
    if not path:
        return 0
    with LOCK, open(path, "a+") as file:
        file.write(line + "\n")
        file.flush()
        file.seek(0)
        return len(file.readlines())


def send(message: dict) -> None:
    with LOCK:
        sys.stdout.write(json.dumps(message | {"jsonrpc": "2.0"}) + "\n")
        sys.stdout.flush()


def listing(cursor: str | None) -> dict:
    names = OPTS.tools.split(",")
    page = int(cursor or 0)
    size = -(-len(names) // OPTS.pages)
    tools = [
        {"name": name, "description": name, "inputSchema": LIST_SCHEMA if name == "list" else SCHEMA}
        | ({"annotations": {"idempotentHint": True}} if name in OPTS.idempotent.split(",") else {})
        | (RICH if name == "rich" else {})
        for name in names[page * size : (page + 1) * size]
    ]
    if page + 1 < OPTS.pages:
        return {"tools": tools, "nextCursor": str(page + 1)}
    return {"tools": tools, **({"nextCursor": "0"} if OPTS.repeat_cursor else {})}


def call(request: dict) -> None:
    name = request["params"]["name"]
    text = str(request["params"].get("arguments", {}).get("text", ""))
    calls = note(OPTS.calls, f"call {name}")
    is_error = False
    more: dict = {}
    if name == "fail":
        text, is_error = f"failed on {text}", True
    elif name == "list":
        text = json.dumps(request["params"].get("arguments", {}))
    elif name == "hang":
        time.sleep(600)
    elif name == "slow":
        time.sleep(0.6)
    elif name == "big":
        text = "é" * 5_000_000
    elif name == "die" or (name == "die_once" and calls == 1):
        os._exit(7)
    elif name == "env":
        text = json.dumps(dict(os.environ))
    elif name == "pid":
        text = str(os.getpid())
    elif name == "child":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        text = str(child.pid)
    elif name == "deaf":
        with LOCK:
            time.sleep(600)
    elif name == "garbage":
        with LOCK:
            print("this is no JSON", flush=True)
    elif name == "rich":
        more = {"structuredContent": {"text": text}, "_meta": {"odd/weight": 3}}
    content = [{"type": "text", "text": text}]
    if name == "image":
        content = [{"type": "image", "data": PNG, "mimeType": "image/png"}]
    send({"id": request["id"], "result": {"content": content, "isError": is_error} | more})


def answer(request: dict) -> None:
    method, params = request["method"], request.get("params", {})
    if method == "notifications/cancelled":
        note(OPTS.calls, "cancelled")
    elif method == "initialize":
        server = {"name": "odd", "version": "1"}
        version = params["protocolVersion"]
        send({"id": request["id"], "result": {"protocolVersion": version, "capabilities": {}, "serverInfo": server}})
    elif method == "tools/list":
        send({"id": request["id"], "result": listing(params.get("cursor"))})
    elif method == "tools/call":
        threading.Thread(target=call, args=(request,), daemon=True).start()
    elif "id" in request:
        send({"id": request["id"], "error": {"code": -32601, "message": f"unknown method {method}"}})


def main() -> None:
    starts = note(OPTS.starts, "start")
    if OPTS.say_env:
        print("my key is", os.environ[OPTS.say_env], "and more", file=sys.stderr, flush=True)
    if OPTS.die_at_start or (OPTS.die_from_start and starts >= OPTS.die_from_start):
        sys.exit(OPTS.die_at_start or "broken since the last deployment")
    if OPTS.die_while and os.path.exists(OPTS.die_while):
        sys.exit("broken for now")
    time.sleep(OPTS.start_seconds)
    if OPTS.start_seconds:
        note(OPTS.starts, "up")
    for line in sys.stdin:
        if not OPTS.silent:
            answer(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
