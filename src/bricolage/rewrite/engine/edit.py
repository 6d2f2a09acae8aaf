"""Putting new operators in the place of old ones, and what the graph loses by it. Nothing here knows rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from bricolage.graph.graph import bodies, describe
from bricolage.rewrite.builder import GraphBuilder, detach
from bricolage.rewrite.rule import MatchFailure

Pairs = Sequence[tuple[ir.Value, ir.Value]]
"""Values with what replaces them."""


def owning_graph(node: ir.Node) -> ir.Graph:
    """The graph (the main one, or a body of control flow) that a node is in."""
    assert isinstance(node.graph, ir.Graph)
    return node.graph


def own_outputs(pairs: Pairs, builder: GraphBuilder, home: ir.Graph) -> list[tuple[ir.Value, ir.Value]]:
    """The pairs, with an Identity wherever a graph output would become something that cannot take over its name: an input,
    a constant, another output, or a value of an enclosing graph."""
    new, taken = set(builder.nodes), set[ir.Value]()
    owned_pairs: list[tuple[ir.Value, ir.Value]] = []
    for old, value in pairs:
        if old.is_graph_output():
            producer = value.producer()
            ownable = producer is not None and (producer in new or producer.graph is home)
            if not ownable or value.is_graph_output() or value in taken:
                value = builder.identity(value)
            taken.add(value)
        owned_pairs.append((old, value))
    return owned_pairs


def check_replacements(pairs: Pairs) -> None:
    """A safety net under the conditions of the rules: what replaces a value has its type, rank and sizes.

    Raises:
        MatchFailure
    """
    for old, new in pairs:
        before, after = describe(old), describe(new)
        if before.dtype != after.dtype:
            raise MatchFailure(f"the type of '{old.name}' would change from {before.dtype} to {after.dtype}")
        if before.shape is None or after.shape is None:
            continue
        if len(before.shape) != len(after.shape) or any(
            isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(before.shape, after.shape, strict=True)
        ):
            raise MatchFailure(f"the shape of '{old.name}' would change from {before.shape} to {after.shape}")


def collect_dead_nodes(pairs: Pairs) -> list[ir.Node]:
    """Nodes that nothing needs any more once the pairs are replaced, every node after its readers."""
    kept = {new for _, new in pairs}
    replaced = {old for old, _ in pairs}
    gone: dict[ir.Node, None] = {}
    inside: set[ir.Node] = set()  # with what the bodies of control flow hold
    waiting = list(dict.fromkeys(producer for old, _ in pairs if (producer := old.producer()) is not None))
    while waiting:
        node = waiting.pop(0)
        if node in gone:
            continue
        unused = all(
            value in replaced
            or (
                value not in kept
                and not value.is_graph_output()
                and all(usage.node in inside for usage in value.uses())
            )
            for value in node.outputs
        )
        if not unused:
            continue
        gone[node] = None
        inside.add(node)
        reads = [value for value in node.inputs if value is not None]
        for inner in nested_nodes(node):
            inside.add(inner)
            reads += [value for value in inner.inputs if value is not None]
        waiting += [
            producer for value in reads if (producer := value.producer()) is not None and producer not in inside
        ]
    return list(gone)


def nested_nodes(node: ir.Node) -> Iterator[ir.Node]:
    """All nodes in the bodies of a control-flow node."""
    for body in bodies(node):
        yield from body.all_nodes()


def depends(nodes: Sequence[ir.Node], on: set[ir.Node]) -> bool:
    """Whether any of `nodes` (outside the graph) reads, through however many operators, what `on` compute."""
    waiting, seen = list(nodes), set(nodes)
    while waiting:
        node = waiting.pop()
        inner = [v for n in nested_nodes(node) for v in n.inputs]
        for value in (*node.inputs, *inner):
            producer = value.producer() if value is not None else None
            if producer is None or producer in seen:
                continue
            if producer in on:
                return True
            seen.add(producer)
            waiting.append(producer)
    return False


def replace(pairs: Pairs, gone: Sequence[ir.Node], builder: GraphBuilder, before: ir.Node) -> None:
    """Inserts what `builder` made in front of `before` (or where the rule placed it), replaces the pairs and removes `gone`. Graph
    outputs keep their names, types and shapes; a value that is replaced by a new one hands its name on."""
    home = owning_graph(before)
    used = {value for node in builder.nodes for value in node.inputs} | {new for _, new in pairs}
    for constant in builder.constants:
        if constant in used:
            home.register_initializer(constant)
    starts = [(0, before), *builder.insertion_points]
    ends = [*(start for start, _ in starts[1:]), len(builder.nodes)]
    for (start, place), end in zip(starts, ends, strict=True):
        home.insert_before(place, builder.nodes[start:end])
    new_nodes, outputs = set(builder.nodes), set[ir.Value]()
    for old, new in pairs:
        name, is_output = old.name, old.is_graph_output()
        if is_output or (new.shape is None and old.shape is not None):
            new.type, new.shape = old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        if is_output:
            outputs.add(new)
        if is_output or (new.producer() in new_nodes and new not in outputs):
            old.name = builder.names.fresh(f"{name}.replaced")
            new.name = name
    for node in gone:
        for inner in nested_nodes(node):
            detach(inner)
        owning_graph(node).remove(node, safe=True)
