"""``Readers``: documents are read in processes of their own, so that a hostile one costs a deadline and no more."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from typing import Any

from agentdock.reading.document import Document, ReadProblem, Source

MEMORY_BYTES = 2 * 1024**3


class Readers:
    """Up to ``parallel`` warm processes, started when first needed and replaced when one is killed or dies."""

    def __init__(self, *, parallel: int = 2, timeout_seconds: float = 60.0, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_seconds = timeout_seconds
        self._memory_bytes = memory_bytes
        self._places = asyncio.Semaphore(parallel)
        self._idle: list[asyncio.subprocess.Process] = []

    async def read(self, source: Source) -> Document:
        """Raise ``ReadProblem`` if it cannot be read, or not within the time."""
        async with self._places:
            process = self._idle.pop() if self._idle else await self._start()
            kept = False
            try:
                async with asyncio.timeout(self._timeout_seconds):
                    answer = await _ask(process, source)
                kept = True
            except TimeoutError:
                raise ReadProblem(f"the document was not read within {self._timeout_seconds:g} s") from None
            except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
                raise ReadProblem(f"the process that read the document died of it ({error})") from error
            finally:
                if kept:
                    self._idle.append(process)
                else:
                    await _end(process)
        if "problem" in answer:
            raise ReadProblem(answer["problem"])
        return Document.from_json(answer)

    async def close(self) -> None:
        while self._idle:
            await _end(self._idle.pop())

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "agentdock.reading.child",
            str(self._memory_bytes),
            str(int(self._timeout_seconds) + 1),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


async def _ask(process: asyncio.subprocess.Process, source: Source) -> dict[str, Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    header = {
        "size": len(source.body),
        "name": source.name,
        "content_type": source.content_type,
        "url": source.url,
    }
    process.stdin.write(json.dumps(header).encode() + b"\n" + source.body)
    await process.stdin.drain()
    size = int(await process.stdout.readline())
    return json.loads(await process.stdout.readexactly(size))


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    # Where a pipe is still open, as after a cancelled read, waiting must not be cut short a second time.
    await asyncio.shield(process.wait())
