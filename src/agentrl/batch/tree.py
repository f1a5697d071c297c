"""Paths to a prefix tree in depth-first order: every shared prefix is stored once.

Shapes: U unique tokens. Token k is visible to token q iff ``k <= q < subtree_end_U[k]``; the position of a token is its
depth. Sorting the paths puts each one next to its closest relative, so the prefix shared with the path before is all
that can be shared, and appending the rest yields depth-first order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentrl.batch.segments import SampleError

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """``parent_U`` is -1 at roots; ``nodes[p]`` are the indices in U of the tokens of path p, root first."""

    token_ids_U: Ids
    parent_U: Ids
    positions_U: Ids
    subtree_end_U: Ids
    nodes: tuple[Ids, ...]

    @classmethod
    def from_paths(cls, paths: Sequence[Ids], families: Sequence[int] | None = None) -> PrefixTree:
        """Tree (a forest, in general) of ``paths``; only paths of the same family share tokens (default: all)."""
        nodes: list[Ids] = [np.zeros(0, dtype=np.int64)] * len(paths)
        token_ids, parents, positions, open_nodes = [], [], [], np.zeros(0, dtype=np.int64)
        subtree_end = np.zeros(sum(len(path) for path in paths), dtype=np.int64)
        size = 0
        for index, shared in depth_first(paths, families):
            path, kept = paths[index], open_nodes[:shared]
            subtree_end[open_nodes[shared:]] = size
            new = np.arange(size, size + len(path) - shared)
            open_nodes = np.concatenate([kept, new])
            token_ids.append(path[shared:])
            parents.append(np.concatenate([kept[-1:] if shared else [-1], new[:-1]])[: len(new)])
            positions.append(np.arange(shared, len(path)))
            nodes[index] = open_nodes
            size += len(new)
        subtree_end[open_nodes] = size
        return cls(
            token_ids_U=joined(token_ids),
            parent_U=joined(parents),
            positions_U=joined(positions),
            subtree_end_U=subtree_end[:size],
            nodes=tuple(nodes),
        )


def depth_first(paths: Sequence[Ids], families: Sequence[int] | None = None) -> Iterator[tuple[int, int]]:
    """(index of path, tokens it shares with the path before it) in depth-first order of the tree."""
    family = [0] * len(paths) if families is None else families
    order = sorted(range(len(paths)), key=lambda i: (family[i], paths[i].astype(">u4").tobytes(), i))
    before: int | None = None
    for index in order:
        if before is None or family[before] != family[index]:
            yield index, 0
        else:
            yield index, shared_length(paths[before], paths[index])
        before = index


def shared_length(a: Ids, b: Ids) -> int:
    """Length of the longest common prefix."""
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def joined(parts: Sequence[NDArray[np.generic] | Sequence[int]]) -> Ids:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts]).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTree:
    """A tree of rows; ``trained_by`` counts the rows that train a token, ``row_index`` holds the tokens of each row."""

    ids: list[int]
    parent: list[int]
    positions: list[int]
    trained_by: list[int]
    row_index: list[list[int]]


def build_tree(rows: Sequence[Mapping[str, Sequence[int]]]) -> TrainedTree:
    """Tree of rows with ``ids`` and ``loss_mask``; parents come before children."""
    for index, row in enumerate(rows):
        if len(row["ids"]) != len(row["loss_mask"]):
            raise SampleError(f"row {index}: ids and loss_mask differ in length", kind="length_mismatch")
    tree = PrefixTree.from_paths([np.array(row["ids"], dtype=np.int64) for row in rows])
    trained_by = np.zeros(len(tree.token_ids_U), dtype=np.int64)
    for row, nodes in zip(rows, tree.nodes, strict=True):
        trained_by[nodes] += np.array(row["loss_mask"], dtype=np.int64)
    return TrainedTree(
        ids=tree.token_ids_U.tolist(),
        parent=tree.parent_U.tolist(),
        positions=tree.positions_U.tolist(),
        trained_by=trained_by.tolist(),
        row_index=[nodes.tolist() for nodes in tree.nodes],
    )
