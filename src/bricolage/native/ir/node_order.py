"""The nodes of a region in an order in which they can be computed."""

from __future__ import annotations

from collections.abc import Sequence

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
    return order
