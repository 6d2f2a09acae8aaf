"""Nodes of a cache of keys and values that lies in memory between runs: rows are written into it where they belong, and attention
reads as many of them as there are. How long the cache is never enters the code, so that one library serves every length."""

from __future__ import annotations

from dataclasses import dataclass

from bricolage.native.ir.tensors import Input, Node, View

CHUNK = 64
"""Positions whose softmax is summed before it is put together with that of those before: fixed, so that a row has the same bits
whatever else is computed with it."""


SCALED = 32
"""Bytes of a cache that share a scale."""


@dataclass(frozen=True, eq=False)
class RepeatedElements(View):
    """Each element of the last dimension `times` times, one behind another: scales of blocks as an operator reads them."""

    times: int = 1


@dataclass(frozen=True, eq=False)
class CacheNode(Node):
    """What a kernel of its own does with a cache."""

    starts_kernel = True


@dataclass(frozen=True, eq=False)
class ReplacedRows(CacheNode):
    """The rows of `cache` [rows, width] with `updates` [n, width] in the place of those that `places` [n, 1] names; of several for
    one place the last counts. Where the result lies in the memory of the cache, only these rows are written."""

    cache: Input
    places: Node
    updates: Node

    @property
    def sources(self) -> tuple[Node, ...]:
        """The cache, where rows are written, and what is written."""
        return self.cache, self.places, self.updates


@dataclass(frozen=True, eq=False)
class CachedAttention(CacheNode):
    """Attention of n rows of queries [n, 1, heads · size], each to rows of a cache of its own: `lengths[i]` from `starts[i]` on.
    A row of length 0 becomes zeros. Each key head serves heads / key_heads query heads."""

    queries: Node
    keys: Node
    """[rows, key_heads · size], float32, float16, or int8 with scales; stored, as `values` are."""
    values: Node
    starts: Node
    """int64 [n, 1]."""
    lengths: Node
    """int64 [n]."""
    heads: int
    key_heads: int
    scale: float
    most: int
    """Longest length."""
    scales: tuple[Node, Node] | None = None
    """Of keys and of values that are int8: float16 [rows, key_heads · size / `SCALED`], stored."""
    softcap: float = 0.0
    """c: scaled products s become c · tanh(s / c); 0 for products as they are."""

    @property
    def size(self) -> int:
        """Numbers of a head."""
        return self.shape[-1] // self.heads

    @property
    def operations(self) -> int:
        """Two products for each pair of a query and a key, were all lengths the longest."""
        return 4 * self.elements * self.most

    @property
    def sources(self) -> tuple[Node, ...]:
        """Queries, the cache, and which rows of it each query sees."""
        return self.queries, self.keys, self.values, self.starts, self.lengths, *(self.scales or ())
