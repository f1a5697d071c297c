"""Weights through a folder that trainer and engines share: the run folder, or memory (/dev/shm) on one host."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from agentrl.engine.base import Canary, Confirmation
from agentrl.engine.weights import num_bytes, save_weights, tensor_hash
from agentrl.errors import WeightsError
from agentrl.weights.base import EngineUrls, Publication

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")
POLL_SECONDS = 0.1
RETRY_SECONDS = 0.5
NUM_ATTEMPTS = 3
NUM_BYTES_SHOWN = 200
OURS = re.compile(r"\.?v\d+(\.tmp-.*)?")


class DiskPublisher:
    """Writes ``folder/v{version}`` and asks every engine to load it.

    ``urls`` is asked at each publish; without any engine it waits up to ``timeout_seconds``, which bounds the
    confirmations as well. The ``keep`` newest folders stay; older ones go once all engines confirmed. What an earlier
    process left in ``folder`` under these names is removed, and ``close`` removes the rest: published files are
    transport, checkpoints are the record.
    """

    def __init__(self, folder: Path, urls: EngineUrls, *, timeout_seconds: float, keep: int = 2) -> None:
        assert keep >= 1, "the version in use must stay"
        self._folder = folder
        self._urls = urls
        self._timeout_seconds = timeout_seconds
        self._keep = keep
        self._published: list[Path] = []
        self._remove_leftovers()

    def publish(self, tensors: Mapping[str, torch.Tensor], *, version: int, canary: Canary | None) -> Publication:
        """Return once every engine serves ``version``; raise ``WeightsError`` that names each one that does not."""
        deadline = time.monotonic() + self._timeout_seconds
        folder = self._folder / f"v{version}"
        self._require_space(num_bytes(tensors))
        save_weights(folder, tensors)
        self._published = [*(path for path in self._published if path != folder), folder]
        urls = self._wait_for_engines(version, deadline)
        body = {"version": version, "path": str(folder.resolve()), "canary": canary and asdict(canary)}
        digest, confirmations = asyncio.run(hash_and_ask(tensors, urls, body, deadline))
        self._remove_older()
        return Publication(version=version, tensor_hash=digest, confirmations=confirmations)

    def close(self) -> None:
        for path in self._published:
            shutil.rmtree(path, ignore_errors=True)
        self._published = []

    def _require_space(self, needed: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._folder).free
        if free < needed:
            raise WeightsError(
                f"{self._folder} has {free >> 20} MiB free, the weights need {needed >> 20} MiB: "
                "make room there, or publish to another folder"
            )

    def _wait_for_engines(self, version: int, deadline: float) -> Sequence[str]:
        while not (urls := self._urls()):
            if time.monotonic() >= deadline:
                raise WeightsError(
                    f"version {version} reached nobody: no engine was there within {self._timeout_seconds:g} s; "
                    "start `agentrl serve` for this run, or name running engines with --engine_url"
                )
            time.sleep(POLL_SECONDS)
        return urls

    def _remove_older(self) -> None:
        for path in self._published[: -self._keep]:
            shutil.rmtree(path, ignore_errors=True)
        self._published = self._published[-self._keep :]

    def _remove_leftovers(self) -> None:
        if not self._folder.is_dir():
            return
        for path in self._folder.iterdir():
            if OURS.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)


async def hash_and_ask(
    tensors: Mapping[str, torch.Tensor], urls: Sequence[str], body: Mapping[str, Any], deadline: float
) -> tuple[str, tuple[Confirmation, ...]]:
    """The hash is computed while the engines load."""
    hashing = asyncio.create_task(asyncio.to_thread(tensor_hash, tensors))
    confirmations = await ask_all(urls, body, deadline)
    return await hashing, confirmations


async def ask_all(urls: Sequence[str], body: Mapping[str, Any], deadline: float) -> tuple[Confirmation, ...]:
    """Confirmations of all engines, asked together; one error for all that did not confirm."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        answers = await asyncio.gather(
            *(ask(session, url.rstrip("/"), body, deadline) for url in urls), return_exceptions=True
        )
    unexpected = [each for each in answers if isinstance(each, BaseException) and not isinstance(each, WeightsError)]
    if unexpected:
        raise unexpected[0]
    failures = [str(each) for each in answers if isinstance(each, WeightsError)]
    if failures:
        raise WeightsError(f"version {body['version']} was not confirmed: {'; '.join(failures)}")
    return tuple(each for each in answers if isinstance(each, Confirmation))


async def ask(session: aiohttp.ClientSession, url: str, body: Mapping[str, Any], deadline: float) -> Confirmation:
    """Loading a version twice changes nothing, so a lost connection is tried again."""
    for attempt in range(1, NUM_ATTEMPTS + 1):
        try:
            async with (
                asyncio.timeout(deadline - time.monotonic()),
                session.post(f"{url}/update_weights", json=body) as response,
            ):
                return confirmation_of(url, body["version"], response.status, await response.read())
        except TimeoutError as error:
            raise WeightsError(f"engine {url} did not answer in time") from error
        except aiohttp.InvalidURL as error:
            raise WeightsError(f"engine {url!r} is no URL") from error
        except (aiohttp.ClientError, OSError) as error:
            if attempt == NUM_ATTEMPTS:
                raise WeightsError(f"engine {url} cannot be reached: {type(error).__name__}: {error}") from error
        await asyncio.sleep(RETRY_SECONDS)
    raise AssertionError("the last attempt returns or raises")


def confirmation_of(url: str, version: int, status: int, raw: bytes) -> Confirmation:
    """Raise ``WeightsError`` unless the engine says that it serves ``version``."""
    beginning = repr(raw[:NUM_BYTES_SHOWN].decode("utf-8", errors="replace"))
    try:
        answer = json.loads(raw)
        if status != 200:
            raise WeightsError(f"engine {url} answered {status}: {answer['error']['message']}")
        seen, difference = answer["version"], answer["canary_difference"]
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"engine {url} answered {status} with {beginning}") from error
    if seen != version:
        raise WeightsError(f"engine {url} acknowledged the update and still serves version {seen}")
    return Confirmation(url=url, version=seen, canary_difference=difference)


def ipc_folder(run: str, *, needed_bytes: int = 0) -> Path:
    """A folder in memory for the weights of ``run`` (its folder's full path, so that equal names do not meet).

    Where /dev/shm is missing, not writable or has less than ``needed_bytes`` free, a temporary folder on disk is used
    and a warning says so: every publish is then written to disk.
    """
    slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(run).name)[:40]
    name = f"agentrl-{os.getuid()}-{slug}-{hashlib.sha256(run.encode()).hexdigest()[:12]}"
    reason = unusable(SHARED_MEMORY, needed_bytes)
    parent = Path(tempfile.gettempdir()) if reason else SHARED_MEMORY
    if reason:
        logger.warning("weights go through %s, so each publish is written to disk: %s", parent, reason)
    return private(parent / name)


def unusable(folder: Path, needed_bytes: int) -> str:
    """Why ``folder`` cannot take the weights; empty when it can."""
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return f"{folder} is not there or not writable"
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        return f"{folder} has {free >> 20} MiB free, {needed_bytes >> 20} MiB are needed"
    return ""


def private(folder: Path) -> Path:
    """Others may write beside it, so the folder must be ours."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.getuid():
        raise WeightsError(f"{folder} belongs to another user; remove it or choose another folder for the weights")
    return folder
