"""The nodes of a region in an order in which they can be computed."""

from __future__ import annotations

from collections.abc import Sequence

from bricolage.native.ir.cache_nodes import ReplacedRows
from bricolage.native.ir.tensors import Node


def order_nodes(outputs: Sequence[Node]) -> list[Node]:
    """All nodes that the outputs need, sources first."""
    order: list[Node] = []
    seen: set[int] = set()
    todo: list[tuple[Node, bool]] = [(node, False) for node in reversed(outputs)]
    while todo:
        node, finished = todo.pop()
        if finished:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            todo.append((node, True))
            todo.extend((source, False) for source in reversed(node.sources))
            # What is written into caches comes first: products then run side by side, and all rows are written behind them.
            todo.extend(
                (update, False)
                for cache in reversed(node.sources)
                if isinstance(cache, ReplacedRows)
                for update in reversed(cache.sources)
            )
    return order
