"""Segments: consecutive operators between narrow places of the graph.

Every interval of a topological numbering is convex, and intervals never form a cycle. Cutting where few bytes are alive
gives the natural blocks of a network (a residual block, a transformer layer, a cell), which engines run as a whole.
"""

from __future__ import annotations

from bricolage.graph.graph import Graph, describe


def live_bytes(graph: Graph) -> list[int]:
    """Per operator the bytes that are alive after it: computed up to it, read later. Tensors that are read all over the
    graph (masks, position tables) count nowhere, since they would hide every narrow place."""
    count = len(graph)
    change = [0] * (count + 1)
    for operator in graph.operators:
        for value in operator.outputs:
            readers = graph.readers(value)
            if not readers:
                continue
            far = readers[-1]
            if len(readers) > 3 and far - operator.number > count // 2:
                continue
            size = max(describe(value).bytes, 1)
            change[operator.number] += size
            change[far] -= size
    alive, total = [], 0
    for delta in change[:count]:
        total += delta
        alive.append(total)
    return alive


def segments(graph: Graph, *, smallest: int = 4, largest: int = 64) -> list[int]:
    """The graph cut into intervals of `smallest` to `largest` operators (the last may be shorter), as bit-sets in order.

    Greedy: from each start, the end within reach where the fewest bytes are alive; of equals the nearest.
    """
    alive = live_bytes(graph)
    count = len(graph)
    cuts: list[int] = []
    start = 0
    while start < count:
        if count - start <= smallest:
            end = count - 1
        else:
            reach = range(start + smallest - 1, min(start + largest, count))
            floor = min(alive[i] for i in reach)
            end = next(i for i in reach if alive[i] <= 1.02 * floor)
        cuts.append(((1 << (end - start + 1)) - 1) << start)
        start = end + 1
    return cuts
