"""Gradient-boosted regression trees as plain data: written by the training, evaluated here with numpy alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from bricolage.base.codec import Length, Within

_MOST_NODES = 1 << 16
_MOST_TREES = 1 << 13
_MOST_FEATURES = 1 << 16
_AT_A_TIME = 1024
"""Rows: all trees of them take a few megabytes."""
Child: TypeAlias = Annotated[int, Within(-_MOST_NODES, _MOST_NODES)]
Finite: TypeAlias = Annotated[float, Within(-1e300, 1e300)]


@dataclass(frozen=True)
class Tree:
    """A tree of decisions. Node 0 is the root; a child is a node's number, or -1 - the number of a leaf."""

    features: Annotated[tuple[Annotated[int, Within(0, _MOST_FEATURES)], ...], Length(0, _MOST_NODES)]
    """That nodes look at."""
    thresholds: tuple[Finite, ...]
    """Up to which, inclusive, a feature leads to the left."""
    left: tuple[Child, ...]
    right: tuple[Child, ...]
    leaves: Annotated[tuple[Finite, ...], Length(1, _MOST_NODES)]
    """Values."""

    def __post_init__(self) -> None:
        count = len(self.features)
        if {len(self.thresholds), len(self.left), len(self.right)} != {count}:
            raise ValueError("the nodes of a tree differ in number")
        for node, child in [*enumerate(self.left), *enumerate(self.right)]:
            # A child comes after its parent, so that every way down ends.
            if not (node < child < count or 0 <= -1 - child < len(self.leaves)):
                raise ValueError("a node of a tree leads nowhere")


@dataclass(frozen=True)
class Forest:
    """A sum of trees."""

    trees: Annotated[tuple[Tree, ...], Length(1, _MOST_TREES)]

    @property
    def width(self) -> int:
        """Features that a row must have at least."""
        return 1 + max((feature for tree in self.trees for feature in tree.features), default=-1)

    def __call__(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Values of rows of features, [rows]."""
        parts = [
            self._packed_trees.values(rows[first : first + _AT_A_TIME]) for first in range(0, len(rows), _AT_A_TIME)
        ]
        return np.concatenate(parts) if parts else np.zeros(0)

    @cached_property
    def _packed_trees(self) -> _Packed:
        return _Packed.of(self.trees)


@dataclass(frozen=True)
class _Packed:
    """All trees in one array, so that numpy goes down all of them at once. A node's child is a node's number or -1 - a leaf's, both
    counted through all trees."""

    features: npt.NDArray[np.int64]
    thresholds: npt.NDArray[np.float64]
    children: npt.NDArray[np.int64]
    """Left and right, [nodes, 2]."""
    leaves: npt.NDArray[np.float64]
    roots: npt.NDArray[np.int64]
    """[trees]"""

    @staticmethod
    def of(trees: Sequence[Tree]) -> _Packed:
        features, thresholds, leaves = list[int](), list[float](), list[float]()
        children, roots = list[tuple[int, int]](), list[int]()
        for tree in trees:
            nodes, ends = len(features), len(leaves)
            pairs = zip(tree.left, tree.right, strict=True)
            children += [(_shift_child(left, nodes, ends), _shift_child(right, nodes, ends)) for left, right in pairs]
            roots.append(nodes if tree.features else -1 - ends)
            features += tree.features
            thresholds += tree.thresholds
            leaves += tree.leaves
        return _Packed(
            np.array(features, dtype=np.int64),
            np.array(thresholds, dtype=np.float64),
            np.array(children, dtype=np.int64).reshape(-1, 2),
            np.array(leaves, dtype=np.float64),
            np.array(roots, dtype=np.int64),
        )

    def values(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Sums over the trees, [rows]."""
        count, trees = len(rows), len(self.roots)
        at = np.tile(self.roots, count)
        row = np.repeat(np.arange(count), trees)
        inside = np.flatnonzero(at >= 0)
        while inside.size:
            nodes = at[inside]
            right = rows[row[inside], self.features[nodes]] > self.thresholds[nodes]
            at[inside] = reached = self.children[nodes, right.astype(np.int64)]
            inside = inside[reached >= 0]
        return np.asarray(self.leaves[-1 - at].reshape(count, trees).sum(axis=1))


def _shift_child(child: int, nodes: int, leaves: int) -> int:
    return child + nodes if child >= 0 else child - leaves
