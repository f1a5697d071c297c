"""A rank that fails or is killed ends all ranks within seconds, with its message and exit code."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ci, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).resolve().parent / "rank_fails.py"
SECONDS = 15.0


@contextmanager
def two_ranks(where: str, how: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Both have joined."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), where, how],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "JOINED\n", rank.communicate()[1]
        yield ranks
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def ends(ranks: list[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    deadline = time.monotonic() + SECONDS
    found = []
    for rank in ranks:
        printed, errors = rank.communicate(timeout=max(0.1, deadline - time.monotonic()))
        found.append((rank.returncode, printed, errors))
    return found


@pytest.mark.parametrize("where", ["collective", "work", "stubborn"])
def test_an_error_of_one_rank_is_the_error_of_all(where: str) -> None:
    with two_ranks(where, "setting") as ranks:
        for code, _, errors in ends(ranks):
            assert code == 2, errors
            assert "agentrl: error: --some_option: is wrong on this rank only" in errors


def test_an_unexpected_error_names_its_rank() -> None:
    with two_ranks("collective", "surprise") as ranks:
        (first, _, heard), (second, _, own) = ends(ranks)
        assert (first, second) == (1, 1)
        assert "rank 1 failed: ValueError: nobody expected this" in heard
        assert "Traceback" in own


def test_a_killed_rank_does_not_leave_the_other_waiting() -> None:
    with two_ranks("collective", "kill") as ranks:
        (code, _, errors), _ = ends(ranks)
        assert code == 1
        assert "rank 0 lost another rank, which ended without a word" in errors


def test_a_signal_to_one_rank_stops_all() -> None:
    with two_ranks("work", "stop") as ranks:
        ranks[1].send_signal(signal.SIGTERM)
        for code, printed, errors in ends(ranks):
            assert code == 0, errors
            assert printed == "STOPPED [True, True]\n"
