"""What the reference's REST client makes of a gateway: mcpapi.py URL [--legacy], token in the environment.

It lists servers and tools, calls ``server.tool`` by the bare names of a server, repeats what failed with a 5xx up to
three times, takes ``status_code`` in a body as the status, and reads text that is JSON as JSON.
"""

import json
import os
import sys
import urllib.error
import urllib.request

ROOT = sys.argv[1]
BASE = f"{ROOT}/mcpapi"
HEADERS = {"Authorization": f"Bearer {os.environ['AGENTDOCK_TOKEN']}", "Content-Type": "application/json"}
if "--legacy" in sys.argv:
    HEADERS["X-AgentDock-Legacy-Errors"] = "1"
TRIES = 4


def ask(method: str, path: str, body: dict | None = None, *, base: str = BASE) -> tuple[int, dict]:
    data = None if body is None else json.dumps(body).encode()
    for _ in range(TRIES):
        status, answer = once(urllib.request.Request(base + path, data=data, headers=HEADERS, method=method))
        if status < 500:
            break
    return status, answer


def once(request: urllib.request.Request) -> tuple[int, dict]:
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
            status = answer.get("status_code", 200) if isinstance(answer, dict) else 200
            return status, answer
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def call(tool: str, arguments: dict) -> list:
    """Whether the call failed and what the model reads; an image as its kind and content."""
    status, answer = ask("POST", f"/tool/{tool}", arguments)
    if status != 200:
        return [True, answer["detail"] if "status_code" in answer else answer["content"]["error"]]
    content = answer["content"]
    if isinstance(content, list):
        kind, _, picture = content[0]["image_url"]["url"].removeprefix("data:").partition(";base64,")
        return [False, kind, picture]
    return [False, content]


(server,) = ask("GET", "/servers")[1]["servers"]
bare = [tool["function"]["name"] for tool in ask("GET", f"/server/{server}/tools")[1]["tools"]]
full = [tool["function"]["name"] for tool in ask("GET", "/tools")[1]["tools"]]
assert full == [f"{server}.{name}" for name in bare], full
print(
    json.dumps(
        {
            "tools": bare,
            "ok": call(f"{server}.echo", {"text": "é 42"}),
            "failed": call(f"{server}.fail", {"text": "this"}),
            "unknown": call(f"{server}.nothing", {})[1],
            "prompts": ask("GET", "/list_prompts", base=ROOT)[1],
            "resources": ask("GET", "/list_resources", base=ROOT)[1],
            "image": call(f"{server}.image", {}),
            "afterwards": call("echo", {"text": "still here"}),
        }
    )
)
