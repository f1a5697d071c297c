"""What hostile code tries, in every tier: each attempt fails or ends with the call, and the result names the tier.

A tier that this machine lacks is skipped with its reason (``pytest -rs`` lists them).
"""

import asyncio
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agentdock.sandbox.limits import Execution, Limits
from agentdock.sandbox.run import Sandbox
from agentdock.sandbox.tiers import TIERS, TierMissing
from agentdock.servers.execution import answer

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the tiers are those of Linux"),
    pytest.mark.parametrize("tier", TIERS),
]
TIGHT = Limits(wall_seconds=10, cpu_seconds=2, processes=16)
LOOP_WITH_CHILDREN = """
import os, subprocess, sys
for _ in range(3):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # {mark}"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
    os._exit(0)
print("looping", flush=True)
while True: pass
"""
DOUBLING_BOMB = """
import os, subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # {mark}"])
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
MANY_SMALL = """
import os, time
pids = []
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        held = bytearray(os.urandom(1024)) * (80 * 1024)
        time.sleep(600)
    pids.append(pid)
print("forked", flush=True)
print(os.waitpid(pids[0], 0)[1])
"""
LOOK_FOR_OTHERS = """
import os
def attempt(act):
    try:
        return act()
    except OSError:
        return ""
seen = [attempt(lambda: open({path!r}).read()), attempt(lambda: os.listdir({folder!r}))]
for pid in range(1, 65536):
    seen.append(attempt(lambda: open(f"/proc/{{pid}}/cwd/{name}").read()))
for place in ("/tmp", "/var/tmp", "/dev/shm", ".."):
    for entry in attempt(lambda: os.listdir(place)):
        seen.append(attempt(lambda: os.listdir(os.path.join(place, entry))))
print("{name}" in str(seen))
"""


def sandbox_of(tier: str, limits: Limits = TIGHT) -> Sandbox:
    return Sandbox(limits, parallel=4, tiers=(tier,), min_tier=tier)


def run_in(tier: str, code: str, limits: Limits = TIGHT) -> Execution:
    """Run in exactly this tier; skip with the reason where the machine lacks it."""
    try:
        execution = asyncio.run(sandbox_of(tier, limits).run(code))
    except TierMissing as error:
        pytest.skip(str(error))
    assert execution.containment.tier == tier
    return execution


def alive(mark: str) -> list[str]:
    def lines() -> Iterator[str]:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                yield path.read_bytes().decode(errors="replace")

    return [line for line in lines() if mark in line]


async def written(name: str) -> Path:
    """Where the file ``name`` of a running call lies, seen from here."""
    while not (found := list(Path(tempfile.gettempdir()).glob(f"agentdock-*/{name}"))):
        await asyncio.sleep(0.05)
    return found[0]


def skip_without_own_user(execution: Execution) -> None:
    if execution.containment.tier == "limits" and not execution.containment.own_user:
        pytest.skip("without a user of its own a child with an empty environment escapes at the tier 'limits'")


def test_an_endless_loop_ends_at_its_limit_with_all_its_children(tier: str) -> None:
    mark = uuid.uuid4().hex
    execution = run_in(tier, LOOP_WITH_CHILDREN.replace("{mark}", mark), replace(TIGHT, cpu_seconds=1))
    skip_without_own_user(execution)
    assert execution.stdout == "looping\n"
    assert execution.stopped == "CPU time limit of 1 s"
    assert answer(execution).is_error
    assert alive(mark) == []


def test_a_fork_bomb_that_doubles_is_bounded_and_leaves_nothing(tier: str) -> None:
    mark = uuid.uuid4().hex
    execution = run_in(tier, DOUBLING_BOMB.replace("{mark}", mark), replace(TIGHT, wall_seconds=1.5))
    assert execution.stopped or execution.exit_code != 0
    assert alive(mark) == []
    assert run_in(tier, "print('next')").stdout == "next\n"


def test_memory_is_bounded_over_all_processes_together(tier: str) -> None:
    """Each child stays well below the limit of one process; six of them do not."""
    execution = run_in(tier, MANY_SMALL, replace(TIGHT, memory_bytes=256 * 1024**2))
    assert execution.stdout.startswith("forked\n")
    held_by_the_engine = tier == "container" and execution.stdout.split()[1:] == ["9"]
    assert execution.stopped == "memory limit of 256 MiB for all processes together" or held_by_the_engine


def test_five_mebibytes_of_output_are_cut_with_the_flag_on_both_streams(tier: str) -> None:
    code = "import sys\nfor stream in (sys.stdout, sys.stderr): stream.write('x' * 5 * 1024**2)"
    execution = run_in(tier, code, replace(TIGHT, output_bytes=1000))
    assert execution.truncated
    for name, text in (("stdout", execution.stdout), ("stderr", execution.stderr)):
        assert text == "x" * 1000 + f"\n[{name} truncated: the first 1000 of {5 * 1024**2} bytes are shown]"
    structured = answer(execution).structured
    assert structured is not None
    assert structured["truncated"] is True


def test_a_secret_of_the_environment_is_not_seen(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "not-for-the-code")
    code = """
import glob, os
print("not-for-the-code" in str(os.environ))
for path in glob.glob("/proc/*/environ"):
    try:
        print(b"not-for-the-code" in open(path, "rb").read())
    except OSError:
        pass
"""
    assert "True" not in run_in(tier, code).stdout


def test_the_files_of_another_call_are_out_of_reach(tier: str) -> None:
    name = f"mine-{uuid.uuid4().hex}"
    keep = f"import os, time\nos.chmod('.', 0o777)\nopen('{name}', 'w').write('{name}')\ntime.sleep(60)"

    async def main() -> Execution:
        sandbox = sandbox_of(tier)
        await sandbox.choice()
        other = asyncio.create_task(sandbox.run(keep))
        try:
            path = await asyncio.wait_for(written(name), timeout=30)
            code = LOOK_FOR_OTHERS.format(folder=str(path.parent), name=name, path=str(path))
            return await sandbox.run(code)
        finally:
            other.cancel()
            await asyncio.wait([other])

    try:
        execution = asyncio.run(main())
    except TierMissing as error:
        pytest.skip(str(error))
    if execution.containment.readable != "own":
        pytest.skip(f"this kernel holds less, and the result says so: {execution.containment}")
    assert execution.stdout == "False\n", execution.stderr


@pytest.mark.parametrize("code", ["1", "raise SystemExit(3)", "x = (", "import time; time.sleep(60)"])
def test_every_result_names_its_tier_however_it_ended(tier: str, code: str) -> None:
    structured = answer(run_in(tier, code, replace(TIGHT, wall_seconds=1.5))).structured
    assert structured is not None
    assert structured["tier"] == tier
    assert {"own_user", "network", "readable"} <= set(structured)


def test_below_the_least_tier_nothing_runs(tier: str, tmp_path: Path) -> None:
    """Only tiers that are weaker than the required one are allowed: whatever the machine has, none may be used."""
    weaker = TIERS[TIERS.index(tier) + 1 :]
    mark = tmp_path / "ran"
    sandbox = Sandbox(TIGHT, parallel=1, tiers=weaker, min_tier=tier)
    with pytest.raises(TierMissing, match=f"no sandbox of tier '{tier}' or stronger works here"):
        asyncio.run(sandbox.run(f"open({str(mark)!r}, 'w').close()"))
    assert not mark.exists()
