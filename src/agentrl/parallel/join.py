"""``join_ranks``: this process among those that the launcher started, and how they speak.

Objects go over a control group (gloo), gradients over the device's own backend. Only rank 0 waits for the world
outside; while it does, it says ``not yet`` so often that no rank runs into a time limit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from agentrl.errors import ConfigError
from agentrl.parallel.board import Board, OnFailure, portable
from agentrl.parallel.fsdp import Sharding, shard, whole_on_first
from agentrl.parallel.launch import Launch
from agentrl.parallel.ranks import ONE_RANK, Ranks

NOT_YET_SECONDS = 10.0
GROUP_TIMEOUT = timedelta(minutes=30)
"""How far ranks may drift apart: the longest step of one rank against an idle one."""

T = TypeVar("T")
Outcome = tuple[str, Any]
NOT_YET: Outcome = ("not yet", None)


@contextmanager
def join_ranks(
    launch: Launch,
    *,
    device: str,
    stop: threading.Event,
    on_failure: OnFailure,
    sharding: Sharding | None = None,
) -> Iterator[Ranks]:
    """The ranks of this launch; ``stop`` is set on all when it is set on one.

    An ``AgentRLError`` of one rank is raised on all, another error as ``RankFailed``; a rank that cannot be reached in
    time ends with what ``on_failure`` returns.
    """
    if launch.world_size == 1:
        yield ONE_RANK
        return
    kind = device_kind(device, launch)
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=GROUP_TIMEOUT)
    board = Board(second_store(), rank=launch.rank, size=launch.world_size, stop=stop, on_failure=on_failure)
    try:
        control = distributed.new_group(backend="gloo", timeout=GROUP_TIMEOUT)
        mesh = init_device_mesh(kind, (launch.world_size,), mesh_dim_names=("data",))
        yield SeveralRanks(launch, control, mesh, sharding or Sharding(), stop)
    except BaseException as error:
        theirs = board.leave_failed(error)
        if theirs is None:
            raise
        raise theirs from error
    board.leave()
    distributed.destroy_process_group()


def device_kind(device: str, launch: Launch) -> str:
    """``cpu`` or ``cuda``; there each local rank takes the device of its number."""
    if device.startswith("cuda:"):
        raise ConfigError(
            f"{device} is one device, but {launch.world_size} ranks train: each takes the one of its local rank, give "
            "cuda (CUDA_VISIBLE_DEVICES chooses among them)",
            setting="--device",
        )
    if device == "mps":
        raise ConfigError("several ranks train on cpu or cuda, not on mps", setting="--device")
    if device == "cpu" or not torch.cuda.is_available():
        return "cpu"
    count = torch.cuda.device_count()
    if launch.local_world_size > count:
        raise ConfigError(
            f"{launch.local_world_size} ranks on this machine, but torch sees {count} GPUs: start at most {count}, or "
            "give --device cpu",
            setting="--nproc_per_node",
        )
    torch.cuda.set_device(launch.local_rank)
    return "cuda"


def second_store() -> distributed.Store:  # pyright: ignore[reportPrivateImportUsage]
    """A connection of its own to the launcher's store: that of torch is locked while a collective waits in it."""
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)  # pyright: ignore[reportPrivateImportUsage]
    attempt = f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return distributed.PrefixStore(attempt, store)  # pyright: ignore[reportPrivateImportUsage]


class SeveralRanks:
    """See ``Ranks``."""

    def __init__(
        self,
        launch: Launch,
        control: Any,
        mesh: DeviceMesh,
        sharding: Sharding,
        stop: threading.Event,
    ) -> None:
        self.rank = launch.rank
        self.size = launch.world_size
        self._control = control
        self._mesh = mesh
        self._sharding = sharding
        self._stop = stop

    def on_first(self, work: Callable[[], T]) -> T:
        if self.rank == 0:
            result = self._work(work)
            self._say(("done", result))
            return result
        return self._hear()

    def scatter(self, work: Callable[[], Sequence[T]]) -> T:
        own: list[Any] = [None]
        if self.rank == 0:
            values = self._work(work)
            assert len(values) == self.size
            self._say(("done", None))
            distributed.scatter_object_list(own, [None, *values[1:]], src=0, group=self._control)
            return values[0]
        self._hear()
        distributed.scatter_object_list(own, None, src=0, group=self._control)
        return own[0]

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value, group=self._control)
        return values

    def shard(self, root: nn.Module, layers: Sequence[nn.Module]) -> None:
        shard(root, layers, self._mesh, self._sharding)

    def whole(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return whole_on_first(tensors, self.rank)

    @property
    def checkpoint_group(self) -> dict[str, Any]:
        return {"process_group": self._control}

    # --- Rank 0 speaks, the others listen ------------------------------------------------------------------------

    def _work(self, work: Callable[[], T]) -> T:
        """Whatever escapes is said before it is raised: the others would wait for rank 0."""
        with self._saying_not_yet():
            try:
                result, escaped = work(), None
            except Exception as error:
                result, escaped = None, error
        if escaped is not None:
            self._say(("raised", portable(escaped)))
            raise escaped
        return result  # pyright: ignore[reportReturnType]

    def _hear(self) -> Any:
        while (said := self._say(NOT_YET))[0] == "not yet":
            pass
        kind, value = said
        if kind == "raised":
            raise value
        return value

    def _say(self, outcome: Outcome) -> Outcome:
        """What rank 0 says; the others' own is ignored."""
        said: list[Any] = [outcome]
        distributed.broadcast_object_list(said, src=0, group=self._control)
        return said[0]

    @contextmanager
    def _saying_not_yet(self) -> Iterator[None]:
        """In a thread, so that the work keeps the main one, where signals arrive. Raises what kept it from speaking."""
        ended = threading.Event()
        broken: list[RuntimeError] = []

        def repeat() -> None:
            while not ended.wait(NOT_YET_SECONDS):
                try:
                    self._say(NOT_YET)
                except RuntimeError as error:
                    broken.append(error)
                    self._stop.set()
                    return

        thread = threading.Thread(target=repeat, name="ranks-not-yet", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if broken:
            raise broken[0]
