"""The form in which weights travel: a folder with ``model.safetensors``, names as in the Hugging Face state dict.

Tied tensors are stored once, under the name that comes first (the embedding's).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl.errors import WeightsError

if TYPE_CHECKING:
    import torch

FILE_NAME = "model.safetensors"
NUM_NAMED = 5


def tensor_hash(tensors: Mapping[str, torch.Tensor]) -> str:
    """Sha256 over names, dtypes, shapes and bytes, in the order of names; tied tensors count once."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(stored_once(tensors).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def num_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    """What ``save_weights`` will write, without the header."""
    return sum(tensor.numel() * tensor.element_size() for tensor in stored_once(tensors).values())


def save_weights(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write ``tensors`` so that ``folder`` is either complete or not there; a folder of that name is replaced."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    fresh = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in stored_once(tensors).items()}
        save_file(plain, fresh / FILE_NAME, metadata={"format": "pt"})
        replace_folder(fresh, folder)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{folder}: the weights could not be written: {error}") from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def replace_folder(fresh: Path, folder: Path) -> None:
    """A folder cannot be renamed over one that is not empty, so the old one steps aside first."""
    old = fresh.with_name(f"{fresh.name}-old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_weights(model: torch.nn.Module, folder: Path | str) -> None:
    """Copy the weights in ``folder`` into ``model`` in place; see ``read_weights``."""
    import torch

    fresh = read_weights(model, folder)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(fresh[name])


def exchange(model: torch.nn.Module, fresh: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put ``fresh`` (of ``read_weights``) into ``model`` without a copy; return what it held. Ties stay ties."""
    previous = {}
    for name, parameter in model.named_parameters():
        previous[name] = parameter.data
        parameter.data = fresh[name]
    return previous


def read_weights(model: torch.nn.Module, folder: Path | str) -> dict[str, torch.Tensor]:
    """One tensor for every parameter of ``model``, on its device, in its dtype and in memory of its own.

    Every parameter must be in ``folder`` with its shape, and nothing else; a tied one may be absent, and a buffer,
    which training does not change, too. Raises ``WeightsError`` that names what is wrong; the model is not touched.
    """
    folder = Path(folder)
    targets = model.state_dict()
    with opened(folder) as file:
        names = set(file.keys())
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        ties = tied_names(targets)
        missing = {name for name in parameters - names if not ties[name] & names}
        unexpected = names - set(targets)
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in names & set(targets)}
        reshaped = {
            f"{name} {shape} instead of {tuple(targets[name].shape)}"
            for name, shape in shapes.items()
            if shape != tuple(targets[name].shape)
        }
        untied = {name for name in shapes if name not in reshaped and differs_from_tie(file, name, ties[name] & names)}
        refuse(folder, missing=missing, unexpected=unexpected, reshaped=reshaped, untied=untied)
        fresh = {}
        for name, parameter in model.named_parameters():
            stored = name if name in names else min(ties[name] & names)
            # A mapped tensor would change or vanish with its file.
            fresh[name] = file.get_tensor(stored).to(device=parameter.device, dtype=parameter.dtype, copy=True)
        return fresh


def refuse(folder: Path, *, missing: set[str], unexpected: set[str], reshaped: set[str], untied: set[str]) -> None:
    problems = [
        f"{what}: {first_of(names)}"
        for what, names in (
            ("missing", missing),
            ("unexpected", unexpected),
            ("of another shape", reshaped),
            ("different from the tensor this model ties them to", untied),
        )
        if names
    ]
    if problems:
        raise WeightsError(
            f"{folder / FILE_NAME} does not fit the engine's model; {'; '.join(problems)}. "
            "Trainer and engine must be given the same model"
        )


def first_of(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = f" and {len(ordered) - NUM_NAMED} more" if len(ordered) > NUM_NAMED else ""
    return ", ".join(ordered[:NUM_NAMED]) + more


@contextmanager
def opened(folder: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    path = folder / FILE_NAME
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: no weights can be read there: {error}") from error


def stored_once(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``tensors`` without the second and later names of one piece of memory."""
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        first.setdefault(place(name, tensor), name)
    return {name: tensors[name] for name in first.values()}


def tied_names(tensors: Mapping[str, torch.Tensor]) -> dict[str, set[str]]:
    """Name -> the other names of the same memory."""
    together: dict[Any, set[str]] = {}
    for name, tensor in tensors.items():
        together.setdefault(place(name, tensor), set()).add(name)
    return {name: group - {name} for group in together.values() for name in group}


def place(name: str, tensor: torch.Tensor) -> Any:
    """Same for two tensors of the same memory seen the same way; an empty one has no memory to share."""
    if tensor.numel() == 0:
        return name
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def differs_from_tie(file: Any, name: str, others: set[str]) -> bool:
    return any(not bool((file.get_tensor(name) == file.get_tensor(other)).all()) for other in others)
