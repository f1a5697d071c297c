"""``python -m agentdock.reading.child``: reads documents from stdin to stdout until stdin ends.

A request is a line of JSON (``size`` and the fields of ``Source``) and then ``size`` bytes; the answer is a line with
its own size and then that many bytes of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any, BinaryIO

from agentdock.reading.document import ReadProblem, Source
from agentdock.reading.read import read


def main() -> None:
    memory_bytes, wall_seconds = int(sys.argv[1]), int(sys.argv[2])
    # Libraries print; only answers may reach the parent.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _limit_memory(memory_bytes)
    requests = sys.stdin.buffer
    while line := requests.readline():
        # Should the parent be gone when a document never ends, this process goes too.
        if hasattr(signal, "alarm"):
            signal.alarm(wall_seconds + 1)
        reply = json.dumps(_answer(json.loads(line), requests)).encode()
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        answers.write(b"%d\n" % len(reply) + reply)
        answers.flush()


def _limit_memory(memory_bytes: int) -> None:
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))


def _answer(request: dict[str, Any], requests: BinaryIO) -> dict[str, Any]:
    body = requests.read(request.pop("size"))
    try:
        return read(Source(body=body, **request)).to_json()
    except ReadProblem as problem:
        return {"problem": str(problem)}
    except (MemoryError, RecursionError) as error:
        return {"problem": f"the document needs more memory or depth than it may use ({type(error).__name__})"}


if __name__ == "__main__":
    main()
