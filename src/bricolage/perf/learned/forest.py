"""Gradient-boosted regression trees as plain data: written by whoever trained them, evaluated here with numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from bricolage.codec import Length, Within

_MOST_NODES = 1 << 16
_MOST_TREES = 1 << 13
_MOST_FEATURES = 1 << 16
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

    def __call__(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Values of rows of features, [rows]."""
        leaves = np.array(self.leaves)
        if not self.features:
            return np.full(len(rows), leaves[0])
        features, thresholds = np.array(self.features), np.array(self.thresholds)
        left, right = np.array(self.left), np.array(self.right)
        at = np.zeros(len(rows), dtype=np.int64)
        while (inside := np.flatnonzero(at >= 0)).size:
            nodes = at[inside]
            goes_left = rows[inside, features[nodes]] <= thresholds[nodes]
            at[inside] = np.where(goes_left, left[nodes], right[nodes])
        return np.asarray(leaves[-1 - at])


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
        return np.asarray(sum((tree(rows) for tree in self.trees), np.zeros(len(rows))))
