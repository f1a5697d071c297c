"""``Board``: what ranks tell each other outside of collectives: that one failed, that one was asked to stop.

A rank that waits in a collective for a rank that failed would wait for its time limit. So each rank looks at the board
in a thread, and ends the process when the main thread cannot.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from torch import distributed

from agentrl.errors import AgentRLError
from agentrl.parallel.ranks import RankFailed

if TYPE_CHECKING:
    from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

logger = logging.getLogger(__name__)

FAILURE, STOP, LEFT = "failure", "stop", "left"
POLL_SECONDS = 0.5
GRACE_SECONDS = 3.0
"""For the main thread to hear of the failure itself."""

OnFailure = Callable[[AgentRLError], int]
"""Prints the error, returns the exit code."""


class Board:
    """``stop`` is set here when any rank's is, and when a rank failed."""

    def __init__(self, store: Store, *, rank: int, size: int, stop: threading.Event, on_failure: OnFailure) -> None:
        self._store = distributed.PrefixStore("agentrl", store)  # pyright: ignore[reportPrivateImportUsage]
        self._rank = rank
        self._size = size
        self._stop = stop
        self._on_failure = on_failure
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ranks-board", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Without an error: the others may go on, or wait for nothing from this rank."""
        self._end_watch()
        with suppress(RuntimeError):
            self._store.add(LEFT, 1)

    def leave_failed(self, error: BaseException) -> AgentRLError | None:
        """Post ``error``, unless another rank's failure came first: that one is returned, to be raised instead."""
        mine = error if isinstance(error, AgentRLError) else None
        theirs = None if mine else self._failure_of_others(seconds=GRACE_SECONDS if peer_is_gone(error) else 0.0)
        self._end_watch()
        try:
            if theirs is None:
                said = mine or RankFailed(f"rank {self._rank} failed: {portable(error)}")
                self._store.compare_set(FAILURE, "", packed(self._rank, said))
            self._store.add(LEFT, 1)
            self._outlive_others()
        except RuntimeError:
            logger.debug("the board is gone", exc_info=True)
        if theirs is None and mine is None and peer_is_gone(error):
            return RankFailed(f"rank {self._rank} lost another rank, which ended without a word: {first_line(error)}")
        return theirs

    def failure(self) -> tuple[int, AgentRLError] | None:
        if not self._store.check([FAILURE]):
            return None
        rank, error = pickle.loads(bytes.fromhex(self._store.get(FAILURE).decode()))
        return rank, error

    def _failure_of_others(self, *, seconds: float) -> AgentRLError | None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.failure()
            except RuntimeError:
                return None
            if found is not None:
                return found[1] if found[0] != self._rank else None
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_SECONDS / 5)

    def _outlive_others(self) -> None:
        """Rank 0 may hold the board in its process, so it goes last."""
        deadline = time.monotonic() + 2 * GRACE_SECONDS
        while self._rank == 0 and self._store.add(LEFT, 0) < self._size and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS / 5)

    def _end_watch(self) -> None:
        self._left.set()
        self._thread.join()

    def _watch(self) -> None:
        told = False
        while not self._left.wait(POLL_SECONDS):
            try:
                if self._stop.is_set() and not told:
                    self._store.set(STOP, "1")
                    told = True
                elif self._store.check([STOP]):
                    self._stop.set()
                found = self.failure()
                error = found[1] if found and found[0] != self._rank else None
            except RuntimeError as gone:
                error = RankFailed(f"the launcher or rank 0 is gone: {first_line(gone)}")
            if error is not None:
                self._end(error)
                return

    def _end(self, error: AgentRLError) -> None:
        self._stop.set()
        if self._left.wait(GRACE_SECONDS):
            return
        code = self._on_failure(error)
        with suppress(RuntimeError):
            self._store.add(LEFT, 1)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def packed(rank: int, error: AgentRLError) -> str:
    return pickle.dumps((rank, portable(error))).hex()


def portable(error: BaseException) -> AgentRLError:
    """``error`` as it can be sent: the same class where it is ours and can be made again, else its words."""
    words = RankFailed(f"{type(error).__name__}: {error}")
    if not isinstance(error, AgentRLError):
        return words
    try:
        again = pickle.loads(pickle.dumps(error))
    except (pickle.PickleError, TypeError, AttributeError):
        return words
    return again if str(again) == str(error) else words


def peer_is_gone(error: BaseException) -> bool:
    """Collectives fail so when a process at the other end does not answer any more."""
    if not isinstance(error, RuntimeError):
        return False
    text = str(error).lower()
    return any(word in text for word in ("gloo", "nccl", "closed by peer", "connection", "timed out"))


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
