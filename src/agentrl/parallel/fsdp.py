"""FSDP2: every rank keeps a part of each parameter, its gradient and its optimizer state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """``reshard_after_forward`` frees the gathered parameters of a layer until its backward pass."""

    reshard_after_forward: bool = True


def shard(root: nn.Module, layers: Sequence[nn.Module], mesh: DeviceMesh, options: Sharding) -> None:
    """Shard each of ``layers``, then what is left of ``root``; tied parameters must both be left in ``root``.

    The weights of the loss are those of the whole step, so gradients are summed, never averaged. gloo knows no
    averaging, and a factor of 1 is honoured there only together with a forced sum.
    """
    for module in (*layers, root):
        sharded = fully_shard(module, mesh=mesh, reshard_after_forward=options.reshard_after_forward)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)


def reshard(root: nn.Module) -> None:
    """Free gathered parameters: after a forward without backward they would outlive the next optimizer step."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """``tensor`` unsharded; every rank must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_on_first(tensors: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
    """Gathered one by one: a rank other than 0 never holds more than one of them."""
    return dict(kept(tensors, rank))


def kept(tensors: Mapping[str, Tensor], rank: int) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        gathered = whole(tensor)
        if rank == 0:
            yield name, gathered.cpu()
